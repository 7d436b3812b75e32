/* arguments.c - reading and checking the arguments of one call (arguments.h); all use of NumPy. */
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "arguments.h"

#include <numpy/arrayobject.h>

PyObject *take(arguments *a) {
    if (a->failed) return NULL;
    if (a->next < a->count) return a->items[a->next++];
    PyErr_Format(PyExc_TypeError, "%s: only %zd arguments", a->op, a->count);
    a->failed = 1;
    return NULL;
}

long take_long(arguments *a) {
    PyObject *item = take(a);
    const long value = item ? PyLong_AsLong(item) : 0;
    if (item && value == -1 && PyErr_Occurred()) a->failed = 1;
    return value;
}

float take_float(arguments *a) {
    PyObject *item = take(a);
    const double value = item ? PyFloat_AsDouble(item) : 0;
    if (item && value == -1 && PyErr_Occurred()) a->failed = 1;
    return (float)value;
}

static const int npy_types[] = {NPY_INT8,   NPY_UINT8,   NPY_INT32,  NPY_INT64,
                                NPY_UINT64, NPY_FLOAT16, NPY_FLOAT32}; /* by item_type */

/* An array of exactly `size` items (-1: any) of one NumPy type; gives its first byte. */
void *array(arguments *a, PyObject *item, const char *name, item_type item_type, int writable,
            npy_intp size) {
    if (a->failed || !item) return NULL;
    const int type = npy_types[item_type];
    PyArrayObject *array = (PyArrayObject *)item;
    const char *wrong = NULL;
    if (!PyArray_Check(item)) wrong = "is no array";
    else if (PyArray_TYPE(array) != type || !PyArray_ISNOTSWAPPED(array))
        wrong = "has another dtype";
    else if (!PyArray_IS_C_CONTIGUOUS(array)) wrong = "is not contiguous";
    else if (!PyArray_ISALIGNED(array)) wrong = "is not aligned";
    else if (writable && !PyArray_ISWRITEABLE(array)) wrong = "is read-only";
    else if (writable && !PyArray_SIZE(array)) wrong = "is empty: there are no tokens";
    if (wrong) {
        PyErr_Format(PyExc_AssertionError, "%s: %s %s", a->op, name, wrong);
        a->failed = 1;
        return NULL;
    }
    if (size >= 0 && PyArray_SIZE(array) != size) {
        PyErr_Format(PyExc_AssertionError, "%s: %s has %zd items, not %zd", a->op, name,
                     PyArray_SIZE(array), size);
        a->failed = 1;
        return NULL;
    }
    return PyArray_DATA(array);
}

#define READER(name, type, item, writable)                        \
    type *name(arguments *a, const char *what, Py_ssize_t size) { \
        return array(a, take(a), what, item, writable, size);     \
    }
READER(out_f32, float, ITEM_F32, 1)
READER(out_i8, int8_t, ITEM_I8, 1)
READER(out_i32, int32_t, ITEM_I32, 1)
READER(out_u64, uint64_t, ITEM_U64, 1)
READER(in_f32, const float, ITEM_F32, 0)
READER(in_i32, const int32_t, ITEM_I32, 0)
READER(in_i64, const int64_t, ITEM_I64, 0)

uint16_t *kv_f16(arguments *a, const char *name, int writable, Py_ssize_t size) {
    return array(a, take(a), name, ITEM_F16, writable, size);
}

#define NAME(name) #name,
static const char *const field_names[] = {FIELDS(NAME)};
static PyObject *interned[NUM_FIELDS];

/* Borrowed: the object keeps what it gives. */
PyObject *get(arguments *a, PyObject *object, field f) {
    if (a->failed) return NULL;
    PyObject *value = PyObject_GetAttr(object, interned[f]);
    if (!value) a->failed = 1;
    Py_XDECREF(value);
    return value;
}

long get_long(arguments *a, PyObject *object, field f) {
    PyObject *value = get(a, object, f);
    const long number = value ? PyLong_AsLong(value) : 0;
    if (value && number == -1 && PyErr_Occurred()) a->failed = 1;
    return number;
}

void *get_array(arguments *a, PyObject *object, field f, item_type type, Py_ssize_t size) {
    return array(a, get(a, object, f), field_names[f], type, 0, size);
}

const Py_ssize_t *shape(arguments *a, PyObject *item, const char *name, int ndim) {
    static const Py_ssize_t none[8];
    if (a->failed || !item) return none;
    if (PyArray_Check(item) && PyArray_NDIM((PyArrayObject *)item) == ndim)
        return PyArray_DIMS((PyArrayObject *)item);
    PyErr_Format(PyExc_AssertionError, "%s: %s is no array of %d dimensions", a->op, name, ndim);
    a->failed = 1;
    return none;
}

void has_shape(arguments *a, PyObject *item, const char *name, long d0, long d1, long d2) {
    const Py_ssize_t *dims = shape(a, item, name, d2 < 0 ? 2 : 3);
    if (a->failed || (dims[0] == d0 && dims[1] == d1 && (d2 < 0 || dims[2] == d2))) return;
    PyErr_Format(PyExc_AssertionError, "%s: %s has the shape (%zd, %zd, ...), not (%ld, %ld, ...)",
                 a->op, name, dims[0], dims[1], d0, d1);
    a->failed = 1;
}

quantized_rows rows_of(arguments *a, PyObject *quantized, long T, long K) {
    const long blocks = T * (K / QUANT_BLOCK);
    quantized_rows x;
    x.values = get_array(a, quantized, FIELD_values, ITEM_I8, T * K);
    x.scales = get_array(a, quantized, FIELD_scales, ITEM_F32, blocks);
    x.sums = get_array(a, quantized, FIELD_sums, ITEM_I32, blocks);
    return x;
}

quantized_out out_of(arguments *a, PyObject *quantized, long T, long K) {
    quantized_out out = {NULL, NULL, NULL};
    if (a->failed || quantized == Py_None) return out;
    const long blocks = T * (K / QUANT_BLOCK);
    if (K % QUANT_BLOCK) refuse(a, "rows to be quantised are no multiple of 32 long");
    has_shape(a, get(a, quantized, FIELD_values), "values", T, K, -1);
    out.values = array(a, get(a, quantized, FIELD_values), "values", ITEM_I8, 1, T * K);
    out.scales = array(a, get(a, quantized, FIELD_scales), "scales", ITEM_F32, 1, blocks);
    out.sums = array(a, get(a, quantized, FIELD_sums), "sums", ITEM_I32, 1, blocks);
    return out;
}

const float *in_rows(arguments *a, const char *name, long rows, long row_size, long *stride) {
    PyArrayObject *array = (PyArrayObject *)take(a);
    *stride = row_size;
    if (!array) return NULL;
    const char *wrong = NULL;
    if (!PyArray_Check(array)) wrong = "is no array";
    else if (PyArray_TYPE(array) != NPY_FLOAT32 || !PyArray_ISNOTSWAPPED(array))
        wrong = "has another dtype";
    else if (!PyArray_ISALIGNED(array)) wrong = "is not aligned";
    else if (PyArray_NDIM(array) < 2 || PyArray_DIM(array, 0) != rows ||
             PyArray_SIZE(array) != rows * row_size)
        wrong = "has another size";
    npy_intp inner = sizeof(float);
    for (int i = wrong || !rows ? 0 : PyArray_NDIM(array) - 1; i > 0; i--) {
        if (PyArray_DIM(array, i) > 1 && PyArray_STRIDE(array, i) != inner)
            wrong = "has rows that are not contiguous";
        inner *= PyArray_DIM(array, i);
    }
    if (!wrong && rows > 1) *stride = PyArray_STRIDE(array, 0) / (long)sizeof(float);
    if (!wrong && *stride < row_size) wrong = "has rows that overlap";
    if (!wrong) return PyArray_DATA(array);
    PyErr_Format(PyExc_AssertionError, "%s: %s %s", a->op, name, wrong);
    a->failed = 1;
    return NULL;
}

const void *in_packed(arguments *a, long R, long units, long unit_bytes) {
    const long tiles = (R + TILE_ROWS - 1) / TILE_ROWS;
    return array(a, take(a), "data", ITEM_U8, 0, tiles * units * unit_bytes);
}

void refuse(arguments *a, const char *what) {
    if (a->failed) return;
    PyErr_Format(PyExc_AssertionError, "%s: %s", a->op, what);
    a->failed = 1;
}

void apart(arguments *a, const void *x, long x_bytes, const void *y, long y_bytes,
           int same_allowed) {
    if (a->failed || (same_allowed && x == y)) return;
    const char *p = x, *q = y;
    if (p < q + y_bytes && q < p + x_bytes) refuse(a, "out overlaps an input");
}

void within(arguments *a, const char *name, const int32_t *values, long n, long bound) {
    for (long i = 0; !a->failed && i < n; i++)
        if (values[i] < 0 || values[i] >= bound) {
            PyErr_Format(PyExc_AssertionError, "%s: %s[%ld] is %d, not in [0, %ld)", a->op, name, i,
                         values[i], bound);
            a->failed = 1;
        }
}

int ready(arguments *a) {
    if (!a->failed && a->next != a->count) {
        PyErr_Format(PyExc_TypeError, "%s: %zd arguments, not %zd", a->op, a->count, a->next);
        a->failed = 1;
    }
    return !a->failed;
}

static void *import_numpy(void) {
    import_array();
    return Py_None;
}

int arguments_start(void) {
    for (int f = 0; f < NUM_FIELDS; f++)
        if (!(interned[f] = PyUnicode_InternFromString(field_names[f]))) return -1;
    return import_numpy() ? 0 : -1;
}
