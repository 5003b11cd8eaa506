/* The loading side of kz_protocol.h as a small extension module: opens a built library and calls its functions.

   Tensors pass as handles that torch's own Python interface gives out and takes back, and metadata is read through
   torch's C interface, so no header of torch is needed to compile this. The candidate's library is given no symbols of
   Python: everything that allocates comes back here as a request and is carried out by a Python function. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "kz_protocol.h"

static PyObject *alloc_handle, *steal_handles, *operation, *stream_of, *tensor_type, *dtype_numbers;
static kz_host host;

/* --- values: Python to C and back. Both own what they hold. */

static void release(kz_value* value) {
  if (value->kind == 'T') host.free_handle(value->as.tensor);
  if (value->kind == 'S') free(value->as.text);
  if (value->kind == 'L' || value->kind == 'U') {
    for (int64_t i = 0; i < value->count; i++) release(&value->as.items[i]);
    free(value->as.items);
  }
  value->kind = 'N';
}

static int take_handle(PyObject* tensor, void** handle) {
  PyObject* capsule = PyObject_CallOneArg(alloc_handle, tensor);
  if (!capsule) return -1;
  *handle = PyCapsule_GetPointer(capsule, NULL);
  Py_DECREF(capsule);
  return *handle ? 0 : -1;
}

/* Of torch's two functions only the one for lists frees the handle. */
static PyObject* give_handle(void* handle) {
  PyObject* capsule = PyCapsule_New(handle, NULL, NULL);
  PyObject* list = capsule ? PyList_New(1) : NULL;
  if (!list) {
    Py_XDECREF(capsule);
    return NULL;
  }
  PyList_SET_ITEM(list, 0, capsule);
  PyObject* tensors = PyObject_CallOneArg(steal_handles, list);
  Py_DECREF(list);
  PyObject* tensor = tensors ? Py_NewRef(PyList_GET_ITEM(tensors, 0)) : NULL;
  Py_XDECREF(tensors);
  return tensor;
}

static int read_text(PyObject* object, kz_value* value) {
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) return -1;
  value->as.text = malloc((size_t)size + 1);
  memcpy(value->as.text, text, (size_t)size + 1);
  value->count = size;
  value->kind = 'S';
  return 0;
}

static int read_value(PyObject* object, kz_value* value, int depth);

static int read_sequence(PyObject* object, kz_value* value, int depth) {
  if (depth > 4) {
    PyErr_SetString(PyExc_TypeError, "a list is nested too deeply");
    return -1;
  }
  Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
  value->as.items = calloc((size_t)count + 1, sizeof(kz_value));
  value->kind = 'L';
  for (value->count = 0; value->count < count; value->count++) {
    PyObject* item = PySequence_Fast_GET_ITEM(object, value->count);
    if (read_value(item, &value->as.items[value->count], depth + 1)) return -1;
  }
  return 0;
}

static int read_integer(PyObject* object, kz_value* value) {
  value->as.i = PyLong_AsLongLong(object);
  value->kind = 'I';
  return value->as.i == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_other(PyObject* object, kz_value* value) {
  PyObject* number = PyDict_GetItemWithError(dtype_numbers, object);
  if (number) {
    value->kind = 'D';
    value->as.i = PyLong_AsLongLong(number);
    return 0;
  }
  PyErr_Clear();
  if (PyIndex_Check(object)) {
    number = PyNumber_Index(object);
    int failed = !number || read_integer(number, value);
    Py_XDECREF(number);
    return failed ? -1 : 0;
  }
  PyErr_Format(PyExc_TypeError, "incompatible function arguments: %.100s cannot be passed", Py_TYPE(object)->tp_name);
  return -1;
}

static int read_value(PyObject* object, kz_value* value, int depth) {
  value->kind = 'N';
  if (object == Py_None) return 0;
  if (PyObject_TypeCheck(object, (PyTypeObject*)tensor_type)) {
    if (take_handle(object, &value->as.tensor)) return -1;
    value->kind = 'T';
    return 0;
  }
  if (PyBool_Check(object)) {
    value->kind = 'B';
    value->as.i = object == Py_True;
    return 0;
  }
  if (PyLong_Check(object)) return read_integer(object, value);
  if (PyFloat_Check(object)) {
    value->kind = 'F';
    value->as.f = PyFloat_AS_DOUBLE(object);
    return 0;
  }
  if (PyUnicode_Check(object)) return read_text(object, value);
  if (PyList_Check(object) || PyTuple_Check(object)) return read_sequence(object, value, depth);
  return read_other(object, value);
}

static PyObject* write_value(kz_value* value);

static PyObject* write_sequence(kz_value* value) {
  PyObject* result = value->kind == 'U' ? PyTuple_New(value->count) : PyList_New(value->count);
  for (int64_t i = 0; result && i < value->count; i++) {
    PyObject* item = write_value(&value->as.items[i]);
    if (!item) {
      Py_CLEAR(result);
    } else if (value->kind == 'U') {
      PyTuple_SET_ITEM(result, i, item);
    } else {
      PyList_SET_ITEM(result, i, item);
    }
  }
  return result;
}

static PyObject* write_value(kz_value* value) {
  void* handle = value->as.tensor;
  switch (value->kind) {
    case 'T':
      value->kind = 'N';
      return give_handle(handle);
    case 'I':
      return PyLong_FromLongLong(value->as.i);
    case 'B':
      return PyBool_FromLong(value->as.i != 0);
    case 'F':
      return PyFloat_FromDouble(value->as.f);
    case 'S':
      return PyUnicode_DecodeUTF8(value->as.text, value->count, "replace");
    case 'L':
    case 'U':
      return write_sequence(value);
    default:
      Py_RETURN_NONE;
  }
}

/* --- what the library may ask for */

static PyObject* request_tensors(const kz_request* request) {
  PyObject* tensors = PyTuple_New(request->tensor_count);
  for (int32_t i = 0; tensors && i < request->tensor_count; i++) {
    void* copy = NULL;
    PyObject* tensor = host.copy_handle(request->tensors[i], &copy) ? NULL : give_handle(copy);
    if (!tensor) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a tensor could not be passed");
      Py_CLEAR(tensors);
    } else {
      PyTuple_SET_ITEM(tensors, i, tensor);
    }
  }
  return tensors;
}

static PyObject* request_ints(const kz_request* request) {
  PyObject* ints = PyTuple_New(request->int_count);
  for (int32_t i = 0; ints && i < request->int_count; i++) {
    PyObject* number = PyLong_FromLongLong(request->ints[i]);
    if (!number) {
      Py_CLEAR(ints);
    } else {
      PyTuple_SET_ITEM(ints, i, number);
    }
  }
  return ints;
}

static int operate(const kz_request* request, kz_value* result) {
  memset(result, 0, sizeof *result);
  result->kind = 'N';
  if (PyErr_Occurred()) return -1;
  PyObject* tensors = request_tensors(request);
  PyObject* ints = tensors ? request_ints(request) : NULL;
  PyObject* answer = NULL;
  if (ints)
    answer = PyObject_CallFunction(operation, "sOOdiiii", request->name, tensors, ints, request->scalar,
                                   (int)request->dtype, (int)request->device_type, (int)request->device_index,
                                   (int)request->memory_format);
  Py_XDECREF(tensors);
  Py_XDECREF(ints);
  int failed = !answer || read_value(answer, result, 0);
  Py_XDECREF(answer);
  return failed;
}

static int current_stream(int device, void** stream) {
  if (PyErr_Occurred()) return -1;
  PyObject* answer = PyObject_CallFunction(stream_of, "i", device);
  if (!answer) return -1;
  *stream = PyLong_AsVoidPtr(answer);
  Py_DECREF(answer);
  return PyErr_Occurred() ? -1 : 0;
}

/* --- functions of a library */

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  const kz_function* function;
} Function;

static int keyword_place(const kz_function* f, PyObject* keyword) {
  for (int32_t i = 0; i < f->named; i++)
    if (PyUnicode_CompareWithASCIIString(keyword, f->names[i]) == 0) return i;
  return -1;
}

static int read_keywords(const kz_function* f, PyObject* const* objects, PyObject* keywords, kz_value* values) {
  Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    int place = keyword_place(f, PyTuple_GET_ITEM(keywords, i));
    if (place < 0 || values[place].kind != 0) {
      PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments: unexpected keyword %R", f->name,
                   PyTuple_GET_ITEM(keywords, i));
      return -1;
    }
    if (read_value(objects[i], &values[place], 0)) return -1;
  }
  return 0;
}

static int fill_defaults(const kz_function* f, kz_value* values) {
  for (int32_t i = 0; i < f->arguments; i++) {
    if (values[i].kind != 0) continue;
    if (i >= f->named || f->defaults[i].kind == 0) {
      PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments: %d are needed, %s", f->name,
                   (int)f->arguments, f->signature);
      return -1;
    }
    values[i] = f->defaults[i];
    if (values[i].kind == 'S') values[i].as.text = strdup(values[i].as.text);
    if (values[i].kind == 'L' || values[i].kind == 'U') {
      PyErr_SetString(PyExc_TypeError, "a default that is a list cannot be passed");
      values[i].kind = 'N';
      return -1;
    }
  }
  return 0;
}

static int read_arguments(const kz_function* f, PyObject* const* objects, Py_ssize_t count, PyObject* keywords,
                          kz_value* values) {
  if (count > f->arguments) {
    PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments: %d are needed, %zd given, %s", f->name,
                 (int)f->arguments, count, f->signature);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++)
    if (read_value(objects[i], &values[i], 0)) return -1;
  if (read_keywords(f, objects + count, keywords, values)) return -1;
  return fill_defaults(f, values);
}

static PyObject* raise(const kz_function* f, int code, const char* message) {
  /* An operation's own exception, a guard's refusal for one, outranks what the candidate made of it. */
  if (PyErr_Occurred()) return NULL;
  if (code == KZ_TYPE_ERROR)
    return PyErr_Format(PyExc_TypeError, "%s(): incompatible function arguments: %s; it takes %s", f->name, message,
                        f->signature);
  PyErr_SetString(PyExc_RuntimeError, message);
  return NULL;
}

static PyObject* call_function(PyObject* callable, PyObject* const* objects, size_t flagged, PyObject* keywords) {
  const kz_function* f = ((Function*)callable)->function;
  kz_value values[KZ_MAX_ARGUMENTS], result;
  char message[2048] = "";
  PyObject* answer = NULL;
  memset(values, 0, sizeof(kz_value) * (size_t)f->arguments);
  memset(&result, 0, sizeof result);
  if (!read_arguments(f, objects, PyVectorcall_NARGS(flagged), keywords, values)) {
    int code = f->invoke(f->self, values, &result, message, sizeof message);
    answer = code || PyErr_Occurred() ? raise(f, code, message) : write_value(&result);
    release(&result);
  }
  for (int32_t i = 0; i < f->arguments; i++) release(&values[i]);
  return answer;
}

static PyObject* function_text(PyObject* self) {
  const kz_function* f = ((Function*)self)->function;
  return PyUnicode_FromFormat("<built function %s%s>", f->name, f->signature);
}

static PyTypeObject function_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kz_host.Function",
    .tp_basicsize = sizeof(Function),
    .tp_vectorcall_offset = offsetof(Function, call),
    .tp_call = PyVectorcall_Call,
    .tp_repr = function_text,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
};

/* --- the module */

static PyObject* functions_of(const kz_function* table, int32_t count) {
  PyObject* result = PyDict_New();
  for (int32_t i = 0; result && i < count; i++) {
    Function* function = PyObject_New(Function, &function_type);
    if (!function) {
      Py_CLEAR(result);
      break;
    }
    function->call = call_function;
    function->function = &table[i];
    PyObject* name = PyUnicode_FromString(table[i].name);
    /* The first of several functions of one name wins. */
    if (!name || !PyDict_SetDefault(result, name, (PyObject*)function)) Py_CLEAR(result);
    Py_XDECREF(name);
    Py_DECREF(function);
  }
  return result;
}

static PyObject* load(PyObject* module, PyObject* path) {
  (void)module;
  const char* text = PyUnicode_AsUTF8(path);
  if (!text) return NULL;
  void* library = dlopen(text, RTLD_NOW | RTLD_LOCAL);
  if (!library) return PyErr_Format(PyExc_ImportError, "%s", dlerror());
  kz_init init = (kz_init)dlsym(library, "PyInit_candidate");
  const kz_function* table = NULL;
  int32_t count = 0;
  if (!init || init(&host, &table, &count) != 0)
    return PyErr_Format(PyExc_ImportError, "the library exports no functions");
  return functions_of(table, count);
}

static int find(void* library, const char* name, void* place) {
  void* address = dlsym(library, name);
  if (!address) PyErr_Format(PyExc_ImportError, "this torch has no %s", name);
  memcpy(place, &address, sizeof address);
  return address ? 0 : -1;
}

static PyObject* setup(PyObject* module, PyObject* args) {
  (void)module;
  const char* path;
  PyObject* objects[6];
  if (!PyArg_ParseTuple(args, "sOOOOOO", &path, &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                        &objects[5]))
    return NULL;
  void* torch = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!torch) return PyErr_Format(PyExc_ImportError, "%s", dlerror());
  host.version = KZ_VERSION;
  host.operate = operate;
  host.stream = current_stream;
  if (find(torch, "aoti_torch_get_data_ptr", &host.data_ptr) || find(torch, "aoti_torch_get_dim", &host.dim) ||
      find(torch, "aoti_torch_get_numel", &host.numel) || find(torch, "aoti_torch_get_sizes", &host.sizes) ||
      find(torch, "aoti_torch_get_strides", &host.strides) ||
      find(torch, "aoti_torch_get_storage_offset", &host.storage_offset) ||
      find(torch, "aoti_torch_get_dtype", &host.dtype) ||
      find(torch, "aoti_torch_get_device_type", &host.device_type) ||
      find(torch, "aoti_torch_get_device_index", &host.device_index) ||
      find(torch, "aoti_torch_new_tensor_handle", &host.copy_handle) ||
      find(torch, "aoti_torch_delete_tensor_object", &host.free_handle))
    return NULL;
  PyObject** places[] = {&alloc_handle, &steal_handles, &operation, &stream_of, &tensor_type, &dtype_numbers};
  for (int i = 0; i < 6; i++) Py_XSETREF(*places[i], Py_NewRef(objects[i]));
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "setup(libtorch_cpu, alloc, steal, operation, stream, tensor type, dtypes)"},
    {"load", load, METH_O, "load(path) -> {name: function}"},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kz_host", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_kz_host(void) {
  if (PyType_Ready(&function_type)) return NULL;
  return PyModule_Create(&definition);
}
