/* The engine from C, and from every language that calls C: libmeshwright_c.so.
 *
 *   meshwright_job* job = NULL;
 *   meshwright_run* run = NULL;
 *   if (meshwright_job_open("job.toml", NULL, 0, &job) == 0 &&
 *       meshwright_job_set(job, "optimizer.lr", "1e-3") == 0 &&
 *       meshwright_run_open(job, NULL, &run) == 0 &&
 *       meshwright_run_train(run, 0, after_step, NULL) == 0)
 *     meshwright_run_finish(run);
 *   if (meshwright_error_code() != 0) fprintf(stderr, "%s", meshwright_error_text());
 *   meshwright_run_close(run);
 *   meshwright_job_close(job);
 *
 * Status. A function that can fail returns 0, or the exit status that `meshwright` would end with
 * (enum meshwright_outcome); meshwright_error_*() tell the rest. Results are written only on
 * success. Nothing is thrown through these functions, no signal handler is installed, nothing is
 * printed, and the process is never ended: but for what a plugin's own code does (docs/plugins.md).
 *
 * Ownership. What *_open() gives is closed by *_close(), which takes NULL. Arguments are copied
 * before a function returns. A text that a handle gives belongs to it, until the next call with the
 * same handle; that of an error to the thread, until its next call.
 *
 * Threads. Different handles may be used by different threads at a time, one handle by one. A run
 * belongs to the thread that opened it, and a process has one run, or one meshwright_generate(), at
 * a time: LibTorch's generator and its number of threads are the process's, and are set by it, as
 * is how malloc keeps freed memory. Callbacks are called by the thread that called the function;
 * they must return (no longjmp, no exception), and must not call a function of the run that calls
 * them.
 *
 * Ranks. One process is one rank. Started by torchrun, srun, mpirun, or with RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT set, it is one of several; else it is alone. "Collective": all ranks
 * call it alike. When a collective call fails on one rank it fails on all, with the same code; the
 * run is over then and can only be closed. A process of several ranks meets the others once: a
 * second meshwright_run_open() or meshwright_generate() needs another MASTER_PORT.
 *
 * Growth. Structs begin with their size, by which each side knows what the other one has; members
 * are only added at the end. Symbols have the version MESHWRIGHT_1.0; what is added later has a
 * later one. Nothing here goes or changes its meaning within the soname. */
#ifndef MESHWRIGHT_MESHWRIGHT_H
#define MESHWRIGHT_MESHWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MESHWRIGHT_C_API __attribute__((visibility("default")))
#else
#define MESHWRIGHT_C_API
#endif

/* What functions return: the exit statuses of the program. */
enum meshwright_outcome {
  MESHWRIGHT_OK = 0,
  MESHWRIGHT_INTERNAL = 1,      /* a defect of Meshwright, or of a plugin */
  MESHWRIGHT_CONFIGURATION = 2, /* a key, a file, or a wrong use of these functions */
  MESHWRIGHT_DOES_NOT_FIT = 3,  /* sizes against the ranks, the model or each other */
  MESHWRIGHT_RANKS = 4,         /* ranks that do not meet, devices, memory */
  MESHWRIGHT_NUMERICS = 5,      /* a loss or a norm that is not finite */
  MESHWRIGHT_COLLECTIVE = 6,    /* a collective failed, or another rank is gone */
  MESHWRIGHT_DATA = 7           /* data, weights, checkpoints, results that cannot be written */
};

typedef struct meshwright_job meshwright_job; /* a configuration */
typedef struct meshwright_run meshwright_run; /* this rank of a training run */

/* The release, "0.2.0". */
MESHWRIGHT_C_API const char* meshwright_version(void);

/* The error of this thread's last call, if it failed: the number of its code (203 is E0203, which
 * `meshwright config explain E0203` explains), else 0. */
MESHWRIGHT_C_API int meshwright_error_code(void);
/* The same as the program prints it, with place, help and notes, and as JSON, as its --json gives
 * it: {"error": {"code", "message", "key", "file", "line", "column", "help", "notes"}, "errors":
 * [...]}. "" and {"error": null, "errors": []} after a success. */
MESHWRIGHT_C_API const char* meshwright_error_text(void);
MESHWRIGHT_C_API const char* meshwright_error_json(void);

/* ---- A job: local, starts nothing, needs no LibTorch. ---- */

/* Reads and checks a TOML file, or a text. `overrides`: `count` of "a.b=c", as --set takes them. */
MESHWRIGHT_C_API int meshwright_job_open(const char* path, const char* const* overrides,
                                         size_t count, meshwright_job** job);
MESHWRIGHT_C_API int meshwright_job_parse(const char* toml, const char* const* overrides,
                                          size_t count, meshwright_job** job);
MESHWRIGHT_C_API void meshwright_job_close(meshwright_job* job);
/* Overrides a key; `value` as in TOML, a string also without its quotes. Checked at once, with all
 * that it touches; refused, the job is as before. */
MESHWRIGHT_C_API int meshwright_job_set(meshwright_job* job, const char* key, const char* value);
/* The value of a key as TOML: 2, 1e-3, "fsdp2"; "none" in quotes: not set. */
MESHWRIGHT_C_API int meshwright_job_get(meshwright_job* job, const char* key, const char** value);
/* What there was to say of the last open, set, validate or plan: lines "notice: ..." and
 * "warning: ...", or "". */
MESHWRIGHT_C_API const char* meshwright_job_notices(meshwright_job* job);
/* As `meshwright validate`: data, sizes and memory too. `world_size`: of the job; 0: WORLD_SIZE, or
 * not known. */
MESHWRIGHT_C_API int meshwright_job_validate(meshwright_job* job, int64_t world_size);
/* `meshwright plan --json` of a rank. `world_size`: 0: WORLD_SIZE, else 1. */
MESHWRIGHT_C_API int meshwright_job_plan(meshwright_job* job, int64_t world_size, int64_t rank,
                                         const char** json);

/* ---- A run: `meshwright train` in parts. ---- */

typedef struct meshwright_run_options {
  size_t size; /* sizeof(meshwright_run_options) */
  /* Rank 0: hears, while functions of the run are called, the lines that the program prints beside
   * those of steps. May be NULL. */
  void (*message)(const char* line, void* user);
  void* user;
  int trace; /* not 0: meshwright_run_finish() writes trace/rank_N.json into the run's folder */
} meshwright_run_options;

/* Collective. Joins the ranks, takes the run's folder, reads the data, loads: the run's newest
 * checkpoint, another one (checkpoint.resume), or first weights. What `meshwright train` writes
 * into <run.dir>/<run.name> is written. The job may be changed or closed afterwards. `options` may
 * be NULL. */
MESHWRIGHT_C_API int meshwright_run_open(const meshwright_job* job,
                                         const meshwright_run_options* options,
                                         meshwright_run** run);

/* One step's row of metrics.jsonl. */
typedef struct meshwright_step {
  size_t size;          /* of the library's struct */
  int64_t step;         /* from 0 */
  double loss;          /* mean over all targets of the step, all ranks */
  double grad_norm;     /* L2, before clipping */
  double lr;            /* learning rate */
  int64_t tokens;       /* targets of the step, all ranks */
  double step_ms;       /* of this rank */
  int64_t memory_bytes; /* peak of this rank's tensors */
} meshwright_step;

/* What a callback may ask for, or both: any rank may, and all do it after the same step. */
enum { MESHWRIGHT_GO_ON = 0, MESHWRIGHT_STOP = 1, MESHWRIGHT_SAVE = 2 };
/* Called on every rank after each step. The parameters are those after the step. */
typedef int (*meshwright_after_step)(const meshwright_step* step, void* user);

/* Collective. Trains at most `steps` steps (0: all that are left), validates and saves when the job
 * says, and always after the last step of the job. After MESHWRIGHT_STOP it returns 0 as well;
 * it may be called again to go on. `after_step` may be NULL. */
MESHWRIGHT_C_API int meshwright_run_train(meshwright_run* run, int64_t steps,
                                          meshwright_after_step after_step, void* user);
/* Collective. A checkpoint of the steps done, on the disk when this returns. */
MESHWRIGHT_C_API int meshwright_run_save(meshwright_run* run);
/* Collective. The mean loss over the validation data, as training would find it now. */
MESHWRIGHT_C_API int meshwright_run_evaluate(meshwright_run* run, double* loss);
/* Collective. Waits for what is being written, exports (checkpoint.export), lets the others go.
 * Call it once, last; a run that is closed without it has its checkpoints, and may leave other
 * ranks waiting. */
MESHWRIGHT_C_API int meshwright_run_finish(meshwright_run* run);
MESHWRIGHT_C_API void meshwright_run_close(meshwright_run* run);

MESHWRIGHT_C_API int64_t meshwright_run_rank(const meshwright_run* run);
MESHWRIGHT_C_API int64_t meshwright_run_world_size(const meshwright_run* run);
/* Steps done, of all runs that this one continues, and of the whole job. */
MESHWRIGHT_C_API int64_t meshwright_run_steps_done(const meshwright_run* run);
MESHWRIGHT_C_API int64_t meshwright_run_max_steps(const meshwright_run* run);
MESHWRIGHT_C_API const char* meshwright_run_folder(const meshwright_run* run);

/* ---- Text and tokens of a model. ---- */

/* What to go on with: `text` or `tokens`. Errors name members as the flags of `meshwright
 * generate`. */
typedef struct meshwright_request {
  size_t size;           /* sizeof(meshwright_request) */
  const char* text;      /* needs a tokenizer, or a model of bytes */
  const int64_t* tokens; /* else token ids */
  size_t token_count;
  int64_t max_new;    /* at most so many new tokens */
  double temperature; /* 0: the most likely token */
  int64_t top_k;      /* 0: all */
  double top_p;
  uint64_t seed;    /* the same seed gives the same tokens */
  const char* stop; /* ids that end the text, "2,7", or "none"; NULL: the model's own */
} meshwright_request;

/* The defaults of `meshwright generate`. `size`: sizeof(meshwright_request). */
MESHWRIGHT_C_API void meshwright_request_init(meshwright_request* request, size_t size);

/* Called on every rank for each new token with the text that it adds to the prompt's ("" where
 * tokens have no text, and of a token that ends it); at last, perhaps, with token -1 and the bytes
 * of a character that is not complete. UTF-8. */
typedef void (*meshwright_on_token)(int64_t token, const char* text, void* user);

/* Collective. The model as it is now goes on with a text. */
MESHWRIGHT_C_API int meshwright_run_generate(meshwright_run* run, const meshwright_request* request,
                                             meshwright_on_token on_token, void* user);
/* Collective. `meshwright generate FOLDER`: a Hugging Face folder, a checkpoint or a run; it is
 * loaded for this call alone. `overrides` as --set. `options` may be NULL. */
MESHWRIGHT_C_API int meshwright_generate(const char* folder, const char* const* overrides,
                                         size_t count, const meshwright_request* request,
                                         const meshwright_run_options* options,
                                         meshwright_on_token on_token, void* user);

#ifdef __cplusplus
}
#endif

#endif
