/* arguments.h - the arguments of one call of the extension, read in order and checked.
 *
 * What is checked here, because it is cheap only here, is what would read or write outside of
 * memory otherwise: type, contiguity, item count, overlap and the range of indices. The first
 * failure sticks and is raised by ready(), as AssertionError with the values.
 *
 *   OP(name) { BEGIN(name);  const long T = take_long(&a);  ...;  RUN(kernel(T, ...)); }
 */
#ifndef LOCKSTEP_ARGUMENTS_H
#define LOCKSTEP_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

typedef struct {
    const char *op;
    PyObject *const *items;
    Py_ssize_t count, next;
    int failed;
} arguments;

PyObject *take(arguments *a);
long take_long(arguments *a);
float take_float(arguments *a);

/* Arrays of exactly so many items (-1: any), C-contiguous; gives the first byte. */
float *out_f32(arguments *a, const char *name, Py_ssize_t size);
int8_t *out_i8(arguments *a, const char *name, Py_ssize_t size);
int32_t *out_i32(arguments *a, const char *name, Py_ssize_t size);
uint64_t *out_u64(arguments *a, const char *name, Py_ssize_t size);
const float *in_f32(arguments *a, const char *name, Py_ssize_t size);
const int32_t *in_i32(arguments *a, const char *name, Py_ssize_t size);
const int64_t *in_i64(arguments *a, const char *name, Py_ssize_t size);
uint16_t *kv_f16(arguments *a, const char *name, int writable, Py_ssize_t size);

/* Rows that are contiguous each, columns of wider rows maybe; gives their distance too. */
const float *in_rows(arguments *a, const char *name, long rows, long row_size, long *stride);
/* The packed bytes of R rows: full tiles of `units` units each (LAYOUT.md). */
const void *in_packed(arguments *a, long R, long units, long unit_bytes);

/* Whole objects of kernels.ops. Their arrays are kept by them while the call lasts. */
#define FIELDS(X)                                                                              \
    X(values) X(scales) X(sums) X(kind) X(rows) X(cols) X(data) X(cos) X(sin) X(adjacent)      \
    X(positions) X(seq_index) X(slot_mapping) X(block_tables)
#define FIELD(name) FIELD_##name,
typedef enum { FIELDS(FIELD) NUM_FIELDS } field;
typedef enum { ITEM_I8, ITEM_U8, ITEM_I32, ITEM_I64, ITEM_U64, ITEM_F16, ITEM_F32 } item_type;

PyObject *get(arguments *a, PyObject *object, field f);
long get_long(arguments *a, PyObject *object, field f);
void *get_array(arguments *a, PyObject *object, field f, item_type type, Py_ssize_t size);
/* An argument, to be written or not. */
void *array(arguments *a, PyObject *item, const char *name, item_type type, int writable,
            Py_ssize_t size);
/* Lengths of an array of `ndim` dimensions; zeros when it is none. */
const Py_ssize_t *shape(arguments *a, PyObject *item, const char *name, int ndim);
void has_shape(arguments *a, PyObject *item, const char *name, long d0, long d1, long d2);
quantized_rows rows_of(arguments *a, PyObject *quantized, long T, long K);
quantized_out out_of(arguments *a, PyObject *quantized, long T, long K); /* None: NULLs */

void refuse(arguments *a, const char *what);
/* Refuses two ranges that share a byte, unless they are the same range and that is allowed. */
void apart(arguments *a, const void *x, long x_bytes, const void *y, long y_bytes,
           int same_allowed);
void within(arguments *a, const char *name, const int32_t *values, long n, long bound);
int ready(arguments *a);
int arguments_start(void); /* once, before any other; -1 and an exception when NumPy is missing */

#define OP(name) \
    static PyObject *op_##name(PyObject *self, PyObject *const *items, Py_ssize_t count)
#define BEGIN(name) \
    (void)self;     \
    arguments a = {#name, items, count, 0, 0}
#define RUN(call)                \
    if (!ready(&a)) return NULL; \
    Py_BEGIN_ALLOW_THREADS call; \
    Py_END_ALLOW_THREADS Py_RETURN_NONE

#define ENTRY(name) {#name, (PyCFunction)(void (*)(void))op_##name, METH_FASTCALL, NULL}

/* The ops of each family, ended by an entry without a name. */
extern PyMethodDef matmul_methods[], row_methods[], attention_methods[], state_methods[];
void count_isas(void); /* once: asking the processor takes microseconds under a hypervisor */
int take_isa(arguments *a); /* an instruction set by its place among the usable ones */

#endif
