// What a plugin may bring beside strategies: model families and kinds of data sets, as blocks of
// its descriptor's chain of extensions. Plain C, append-only as plugin.h.
#pragma once

#include "meshwright/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ids of extensions, after those of plugin.h. */
enum {
  MESHWRIGHT_MODELS = 2,  /* meshwright_components: model families */
  MESHWRIGHT_DATASETS = 3 /* meshwright_components: kinds of data sets */
};

/* A model family (model.plugin = "name", options in [model.name]) or a kind of data set
 * (dataset.plugin = "name", options in [dataset.name]). */
struct meshwright_component {
  size_t struct_size;
  const char* name;    /* as a strategy's */
  const char* aliases; /* other accepted names, "a|b", or NULL */
  const char* summary; /* one line */
  const struct meshwright_option* options;
  size_t option_count;
  void* (*create)(struct meshwright_status*); /* a meshwright::ModelFamily* or DatasetKind*, or NULL
                                                 with the status filled; never throws */
  void (*destroy)(void*);                     /* never throws */
};

/* All of one sort that a plugin has; its strategies may be none then. */
struct meshwright_components {
  struct meshwright_extension extension;
  const struct meshwright_component* components;
  size_t count;
};

#ifdef __cplusplus
}
static_assert(sizeof(meshwright_component) ==
              offsetof(meshwright_component, destroy) + sizeof(void (*)(void*)));
static_assert(sizeof(meshwright_components) ==
              offsetof(meshwright_components, count) + sizeof(size_t));
#endif
