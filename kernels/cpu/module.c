/* module.c - the extension kernels.cpu._cpu: NumPy arrays in, kernels called without the GIL.
 *
 * The border between Python and the kernels. host.py has asserted the shapes; arguments.c checks
 * what would read or write outside of memory; module_FAMILY.c holds one function an op, some 0.2 us
 * a call before the kernel.
 *
 * Importing it on a processor without AVX2, FMA or F16C raises ImportError.
 */
#include "arguments.h"
#include "pool.h"

static PyObject *started_threads(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromLong(pool_started());
}

static PyMethodDef methods[] = {
    {"started_threads", started_threads, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_cpu", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
        PyErr_SetString(PyExc_ImportError,
                        "this processor lacks AVX2, FMA or F16C: run the CPU pool on an x86-64 "
                        "processor that has them "
                        "(Intel from 2013, AMD from 2015)");
        return NULL;
    }
    count_isas();
    if (arguments_start() < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    PyMethodDef *families[] = {matmul_methods, row_methods, attention_methods, state_methods};
    for (int i = 0; module && i < 4; i++)
        if (PyModule_AddFunctions(module, families[i]) < 0) Py_CLEAR(module);
    return module;
}
