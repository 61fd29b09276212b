// The C descriptor by which a strategy plugin is judged. Plain C, append-only: a struct grows at
// its end, struct_size tells how much of it the plugin knew. A plugin exports exactly two symbols:
// `meshwright_plugin_v1` (this descriptor) and `meshwright_abi_<hash16>` (its build facts, made by
// meshwright_add_plugin() in CMake). The engine reads the facts from the file before dlopen, and
// the descriptor before calling anything.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "meshwright/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MESHWRIGHT_PLUGIN_MAGIC UINT64_C(0x31524754474e4d57) /* "WMNGTGR1" in memory order */

/* Which TOML types an option accepts; a union is the sum of several. */
enum {
  MESHWRIGHT_BOOL = 1,
  MESHWRIGHT_INT = 2,
  MESHWRIGHT_NUMBER = 4, /* integer or float */
  MESHWRIGHT_STRING = 8,
  MESHWRIGHT_STRING_LIST = 16,
  MESHWRIGHT_NUMBER_LIST = 32,
  MESHWRIGHT_STRING_MAP = 64,   /* a table of key = "string" */
  MESHWRIGHT_STRING_TABLE = 128 /* a list of lists of strings */
};

/* Option flags. */
enum {
  MESHWRIGHT_OPTIONAL = 1,    /* "none" or "auto" mean: not set */
  MESHWRIGHT_DTYPE = 2,       /* the string names a dtype */
  MESHWRIGHT_OPEN_MIN = 4,    /* min itself is not allowed */
  MESHWRIGHT_IGNORE_CASE = 8, /* choices compare without case, '-' equals '_' */
  MESHWRIGHT_NO_EFFECT =
      16, /* accepted for compatibility, has no meaning in C++; said once when set */
  MESHWRIGHT_NO_MIN = 32, /* min is not a bound */
  MESHWRIGHT_NO_MAX = 64  /* max is not a bound */
};

/* One option: the command line, the validation and the reference page all come from it. */
struct meshwright_option {
  size_t struct_size;
  const char* name;          /* key in its table */
  uint32_t type;             /* sum of MESHWRIGHT_BOOL ... */
  uint32_t flags;            /* sum of MESHWRIGHT_OPTIONAL ... */
  const char* default_value; /* a TOML literal, or NULL: not set */
  double min, max;     /* bounds for numbers (and each number of a list), unless flagged off */
  const char* choices; /* allowed strings, "a|b|c", or NULL */
  const char* aliases; /* older names, "a|b", or NULL; "old{x=1,y=2}" also maps old string values;
                          "t.old": in a table t */
  const char* doc;     /* one or two sentences, with the unit */
};

/* What a strategy can do. */
enum {
  MESHWRIGHT_CAN_PLAN = 1,       /* plan_mesh, translate_tp_plan, footprint */
  MESHWRIGHT_CAN_PARALLELIZE = 2 /* parallelize */
};

/* How create() reports failure. The buffer is the caller's; the plugin writes a NUL-terminated
 * message. */
struct meshwright_status {
  size_t struct_size;
  int32_t code; /* 0 = ok */
  char message[1024];
};

/* A tensor-parallel plan by name, for distributed.tp_plan. */
struct meshwright_tp_plan {
  size_t struct_size;
  const char* name; /* as a strategy's; one a process */
  /* From a meshwright::ModelOutline to the meshwright::TpPlanEntries that it fills; throws
     meshwright::Error only. */
  void (*make)(const void* outline, int sequence_parallel, void* entries);
};

/* One strategy of a plugin. */
struct meshwright_strategy {
  size_t struct_size;
  const char* name; /* as written in `strategy = "..."`: [a-z][a-z0-9_]*, at most 64 characters */
  const char* aliases;       /* other accepted names, "a|b", or NULL */
  const char* summary;       /* one line */
  const char* options_table; /* its table below [distributed], or NULL: its own name */
  const struct meshwright_option* options;
  size_t option_count;
  uint64_t capabilities;                      /* sum of MESHWRIGHT_CAN_... */
  void* (*create)(struct meshwright_status*); /* a meshwright::Strategy*, or NULL with the status
                                                 filled; never throws */
  void (*destroy)(void*);                     /* never throws */
  const struct meshwright_tp_plan* tp_plans;  /* known once the strategy was made */
  size_t tp_plan_count;
};

/* Growth between majors: a chain of blocks known by id; unknown ids are skipped. */
struct meshwright_extension {
  size_t struct_size;
  uint32_t id;
  const struct meshwright_extension* next;
};

/* Ids of extensions. */
enum {
  MESHWRIGHT_RUNTIME_HALF = 1 /* meshwright_runtime_half */
};

/* The library beside this one that runs what this one plans (meshwright/parallel/plugin_runtime.h).
 */
struct meshwright_runtime_half {
  struct meshwright_extension extension;
  const char* file; /* its name, in the plugin's folder */
};

struct meshwright_plugin {
  size_t struct_size;
  uint64_t magic;
  uint32_t sdk_major, sdk_minor;
  const char* name;    /* of the plugin: [a-z][a-z0-9_]* */
  const char* version; /* semver */
  const char* vendor;
  const char* license; /* SPDX */
  const char* summary;
  const char* facts; /* sorted key=value lines, equal to the bytes of the marker */
  const struct meshwright_strategy* strategies;
  size_t strategy_count;
  const struct meshwright_extension* extensions;
};

#ifdef __cplusplus
}
// Append-only: each struct ends at its last field, so struct_size tells exactly which fields exist.
static_assert(sizeof(meshwright_option) == offsetof(meshwright_option, doc) + sizeof(const char*));
static_assert(sizeof(meshwright_status) == offsetof(meshwright_status, message) + 1024 + 4);
static_assert(sizeof(meshwright_tp_plan) ==
              offsetof(meshwright_tp_plan, make) + sizeof(void (*)(const void*, int, void*)));
static_assert(sizeof(meshwright_strategy) ==
              offsetof(meshwright_strategy, tp_plan_count) + sizeof(size_t));
static_assert(sizeof(meshwright_extension) == offsetof(meshwright_extension, next) + sizeof(void*));
static_assert(sizeof(meshwright_plugin) == offsetof(meshwright_plugin, extensions) + sizeof(void*));
#endif
