/* What passes between a built candidate and the process that loads it: plain C, the same on every rung.

   The library exports one function, PyInit_candidate, which takes the host's table and gives back its own functions.
   A tensor travels as a handle: the address of an at::Tensor on the heap. Whoever receives one owns it. */
#ifndef KZ_PROTOCOL_H
#define KZ_PROTOCOL_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { KZ_VERSION = 1, KZ_MAX_ARGUMENTS = 64 };

/* kinds: N none, T tensor, I integer, F double, B boolean, S string, D dtype, L list, U tuple */
typedef struct kz_value {
  int32_t kind;
  int32_t unused;
  int64_t count; /* items of a list or tuple, bytes of a string */
  union {
    int64_t i; /* also booleans, and a dtype's number */
    double f;
    void* tensor;
    char* text;             /* allocated with malloc, ends with 0 */
    struct kz_value* items; /* allocated with malloc */
  } as;
} kz_value;

/* An operation that allocates, copies or makes a view; carried out by torch's Python interface. */
typedef struct kz_request {
  const char* name;
  void* const* tensors;
  const int64_t* ints;
  int32_t tensor_count, int_count;
  double scalar;
  int32_t dtype;        /* -1: not given */
  int32_t device_type;  /* -1: not given, 0 cpu, 1 cuda */
  int32_t device_index; /* -1: not given */
  int32_t memory_format; /* -1: not given, else torch's number */
} kz_request;

/* Functions return 0 where they succeeded. */
typedef struct kz_host {
  int32_t version;
  int (*operate)(const kz_request* request, kz_value* result);
  int (*stream)(int device, void** stream);
  int32_t (*data_ptr)(void* tensor, void** out);
  int32_t (*dim)(void* tensor, int64_t* out);
  int32_t (*numel)(void* tensor, int64_t* out);
  int32_t (*sizes)(void* tensor, int64_t** out);
  int32_t (*strides)(void* tensor, int64_t** out);
  int32_t (*storage_offset)(void* tensor, int64_t* out);
  int32_t (*dtype)(void* tensor, int32_t* out);
  int32_t (*device_type)(void* tensor, int32_t* out);
  int32_t (*device_index)(void* tensor, int32_t* out);
  int32_t (*copy_handle)(void* tensor, void** out);
  int32_t (*free_handle)(void* tensor);
} kz_host;

enum { KZ_OK = 0, KZ_RUNTIME_ERROR = 1, KZ_TYPE_ERROR = 2 };

typedef struct kz_function {
  const char* name;
  const char* signature; /* for messages */
  int32_t arguments;
  int32_t named;               /* the first of these have a name */
  const char* const* names;    /* for calls by keyword */
  const kz_value* defaults;    /* kind 0: none */
  void* self;
  int (*invoke)(void* self, kz_value* arguments, kz_value* result, char* error, size_t error_size);
} kz_function;

typedef int (*kz_init)(const kz_host* host, const kz_function** functions, int32_t* count);

#ifdef __cplusplus
}
#endif
#endif
