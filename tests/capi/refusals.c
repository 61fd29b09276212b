/* Every way to be refused: refusals FOLDER, whose job.toml trains. Says what was not as it should
 * be and ends with the number of such things. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <meshwright/meshwright.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int wrong = 0;

#define EXPECT(condition)                                     \
  do {                                                        \
    if (!(condition)) {                                       \
      ++wrong;                                                \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      fputs(meshwright_error_text(), stderr);                 \
    }                                                         \
  } while (0)

/* The call gives the status, the code, and a text with both words. */
#define REFUSED(call, status, number, word)                                         \
  do {                                                                              \
    EXPECT((call) == (status));                                                     \
    EXPECT(meshwright_error_code() == (number));                                    \
    EXPECT(strstr(meshwright_error_text(), "error[E0" #number "]") != NULL);        \
    EXPECT(strstr(meshwright_error_text(), (word)) != NULL);                        \
    EXPECT(strstr(meshwright_error_json(), "\"code\": \"E0" #number "\"") != NULL); \
  } while (0)

static char file[4096];

static void of_jobs(void) {
  meshwright_job *job = NULL, *none = NULL;
  const char* text = NULL;
  const char* const unknown[] = {"optimizer.lrr=1", "step_scheduler.max_steps=\"x\""};
  REFUSED(meshwright_job_open("/no/such.toml", NULL, 0, &none), MESHWRIGHT_CONFIGURATION, 209,
          "/no/such.toml");
  REFUSED(meshwright_job_open("", NULL, 0, &none), MESHWRIGHT_CONFIGURATION, 101, "path");
  REFUSED(meshwright_job_open(NULL, NULL, 0, &none), MESHWRIGHT_CONFIGURATION, 101, "path");
  REFUSED(meshwright_job_open(file, NULL, 0, NULL), MESHWRIGHT_CONFIGURATION, 101, "job is NULL");
  REFUSED(meshwright_job_open(file, NULL, 2, &none), MESHWRIGHT_CONFIGURATION, 101, "overrides");
  REFUSED(meshwright_job_parse(NULL, NULL, 0, &none), MESHWRIGHT_CONFIGURATION, 101, "toml");
  REFUSED(meshwright_job_parse("schema = = 1", NULL, 0, &none), MESHWRIGHT_CONFIGURATION, 201, "");
  REFUSED(meshwright_job_parse("schema = 1\n[optimizer]\nlrr = 1\n", NULL, 0, &none),
          MESHWRIGHT_CONFIGURATION, 202, "lr");
  REFUSED(meshwright_job_open(file, unknown, 2, &none), MESHWRIGHT_CONFIGURATION, 203, "lrr");
  EXPECT(strstr(meshwright_error_text(), "E0202") != NULL); /* all mistakes at once */
  EXPECT(none == NULL);

  EXPECT(meshwright_job_open(file, NULL, 0, &job) == MESHWRIGHT_OK);
  EXPECT(meshwright_error_code() == 0 && strcmp(meshwright_error_text(), "") == 0);
  EXPECT(strstr(meshwright_error_json(), "\"errors\": []") != NULL);
  REFUSED(meshwright_job_set(job, "optimizer.lr", "-1"), MESHWRIGHT_CONFIGURATION, 204, "lr");
  REFUSED(meshwright_job_set(job, "optimizer.lr", "\"fast\""), MESHWRIGHT_CONFIGURATION, 203, "lr");
  REFUSED(meshwright_job_set(job, "distributed.strategy", "dpd"), MESHWRIGHT_CONFIGURATION, 401,
          "ddp");
  REFUSED(meshwright_job_set(job, NULL, "1"), MESHWRIGHT_CONFIGURATION, 101, "key");
  REFUSED(meshwright_job_set(NULL, "optimizer.lr", "1"), MESHWRIGHT_CONFIGURATION, 101, "job");
  EXPECT(meshwright_job_get(job, "optimizer.lr", &text) == 0 && strcmp(text, "1e-2") != 0);
  EXPECT(meshwright_job_set(job, "optimizer.lr", "0.25") == 0);
  EXPECT(meshwright_job_get(job, "optimizer.lr", &text) == 0 && strcmp(text, "0.25") == 0);
  EXPECT(meshwright_job_set(job, "distributed.strategy", "ddp") == 0); /* without quotes */
  EXPECT(meshwright_job_get(job, "distributed.strategy", &text) == 0 && !strcmp(text, "\"ddp\""));
  EXPECT(meshwright_job_get(job, "distributed.dp_size", &text) == 0 && !strcmp(text, "\"none\""));
  EXPECT(meshwright_job_get(job, "schema", &text) == 0 && strcmp(text, "1") == 0);
  REFUSED(meshwright_job_get(job, "optimizer.lrr", &text), MESHWRIGHT_CONFIGURATION, 202,
          "optimizer.lr?");
  REFUSED(meshwright_job_get(job, "optimizer.lr", NULL), MESHWRIGHT_CONFIGURATION, 101, "value");

  EXPECT(meshwright_job_validate(job, 0) == 0);
  EXPECT(meshwright_job_validate(job, 2) == 0);
  REFUSED(meshwright_job_validate(job, 3), MESHWRIGHT_DOES_NOT_FIT, 310, "global_batch_size");
  REFUSED(meshwright_job_validate(job, -1), MESHWRIGHT_CONFIGURATION, 101, "world_size");
  REFUSED(meshwright_job_plan(job, 2, 2, &text), MESHWRIGHT_DOES_NOT_FIT, 313, "rank");
  REFUSED(meshwright_job_plan(job, 0, 0, NULL), MESHWRIGHT_CONFIGURATION, 101, "json");
  EXPECT(meshwright_job_set(job, "dataset.path", "/no/such/text") == 0);
  REFUSED(meshwright_job_validate(job, 1), MESHWRIGHT_DATA, 701, "/no/such/text");
  meshwright_job_close(job);
  meshwright_job_close(NULL);
}

static meshwright_job* job_with(const char* key, const char* value) {
  meshwright_job* job = NULL;
  EXPECT(meshwright_job_open(file, NULL, 0, &job) == 0);
  EXPECT(meshwright_job_set(job, key, value) == 0);
  return job;
}

static void of_opening(void) {
  meshwright_run* run = NULL;
  meshwright_job *job, *empty = NULL;
  struct {
    meshwright_run_options known;
    char later[16];
  } options;
  REFUSED(meshwright_run_open(NULL, NULL, &run), MESHWRIGHT_CONFIGURATION, 101, "job is NULL");
  EXPECT(meshwright_job_parse("schema = 1\n", NULL, 0, &empty) == 0);
  REFUSED(meshwright_run_open(empty, NULL, &run), MESHWRIGHT_CONFIGURATION, 206, "model");
  meshwright_job_close(empty);

  job = job_with("dataset.path", "/no/such/text");
  REFUSED(meshwright_run_open(job, NULL, &run), MESHWRIGHT_DATA, 701, "/no/such/text");
  meshwright_job_close(job);
  job = job_with("model.config", "/no/such/config.json");
  REFUSED(meshwright_run_open(job, NULL, &run), MESHWRIGHT_CONFIGURATION, 209, "config.json");
  meshwright_job_close(job);
  job = job_with("run.dir", "/proc/no");
  REFUSED(meshwright_run_open(job, NULL, &run), MESHWRIGHT_DATA, 705, "/proc/no");
  REFUSED(meshwright_run_open(job, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101, "run is NULL");
  memset(&options, 0, sizeof options);
  REFUSED(meshwright_run_open(job, &options.known, &run), MESHWRIGHT_CONFIGURATION, 101, "size");
  options.known.size = sizeof options; /* a later release's, but nothing in it is used */
  REFUSED(meshwright_run_open(job, &options.known, &run), MESHWRIGHT_DATA, 705, "/proc/no");
  options.later[3] = 1;
  REFUSED(meshwright_run_open(job, &options.known, &run), MESHWRIGHT_CONFIGURATION, 101, "members");
  meshwright_job_close(job);
  EXPECT(run == NULL);
}

static int calls_back(const meshwright_step* step, void* user) {
  int ends[2];
  (void)step;
  /* A write to nobody, as of a connection to a rank that has ended, is no signal. */
  EXPECT(pipe(ends) == 0 && close(ends[0]) == 0);
  EXPECT(write(ends[1], "", 1) == -1 && errno == EPIPE);
  close(ends[1]);
  REFUSED(meshwright_run_save(user), MESHWRIGHT_CONFIGURATION, 101, "callback");
  return MESHWRIGHT_STOP;
}

static void* of_another_thread(void* run) {
  REFUSED(meshwright_run_save(run), MESHWRIGHT_CONFIGURATION, 101, "thread");
  return NULL;
}

/* Plans and refuses while the run trains. */
static void* plans(void* folder) {
  int i;
  (void)folder;
  for (i = 0; i < 20; ++i) {
    meshwright_job* job = job_with("optimizer.lr", "0.5");
    const char* json = NULL;
    EXPECT(meshwright_job_plan(job, 2, 1, &json) == 0 && strstr(json, "\"world_size\": 2") != NULL);
    REFUSED(meshwright_job_set(job, "optimizer.lr", "-1"), MESHWRIGHT_CONFIGURATION, 204, "lr");
    meshwright_job_close(job);
  }
  return NULL;
}

static void of_runs(void) {
  meshwright_job *job = job_with("run.name", "refusals"), *other;
  meshwright_run *run = NULL, *second = NULL;
  meshwright_request request;
  double loss = 0;
  sigset_t signals;
  struct rlimit limit, small;
  pthread_t thread;
  int64_t out_of_vocabulary = 256;
  EXPECT(meshwright_job_set(job, "validation_dataset.path", "none") == 0);
  EXPECT(meshwright_run_open(job, NULL, &run) == 0);
  REFUSED(meshwright_run_open(job, NULL, &second), MESHWRIGHT_CONFIGURATION, 101, "under way");
  meshwright_request_init(&request, sizeof request);
  REFUSED(meshwright_generate("runs", NULL, 0, &request, NULL, NULL, NULL),
          MESHWRIGHT_CONFIGURATION, 101, "under way");
  REFUSED(meshwright_run_train(run, -1, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101, "steps");
  REFUSED(meshwright_run_train(NULL, 1, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101, "run is NULL");
  EXPECT(meshwright_run_train(run, 0, calls_back, run) == 0);
  EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &signals) == 0 && !sigismember(&signals, SIGPIPE));
  EXPECT(sigpending(&signals) == 0 && !sigismember(&signals, SIGPIPE));
  EXPECT(meshwright_run_steps_done(run) == 1);
  pthread_create(&thread, NULL, of_another_thread, run);
  pthread_join(thread, NULL);
  REFUSED(meshwright_run_evaluate(run, &loss), MESHWRIGHT_CONFIGURATION, 206, "validation");
  REFUSED(meshwright_run_evaluate(run, NULL), MESHWRIGHT_CONFIGURATION, 101, "loss");

  REFUSED(meshwright_run_generate(run, NULL, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101, "request");
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101,
          "something to continue");
  request.tokens = &out_of_vocabulary;
  request.token_count = 1;
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_DATA, 702, "256");
  request.text = "a";
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101,
          "both");
  request.tokens = NULL;
  request.token_count = 0;
  request.top_p = 2;
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_CONFIGURATION, 204,
          "top_p");
  request.top_p = 1;
  request.max_new = 0;
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101,
          "max_new");
  request.max_new = 3;
  request.size = 8;
  REFUSED(meshwright_run_generate(run, &request, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101,
          "size");
  request.size = sizeof request;
  EXPECT(meshwright_run_generate(run, &request, NULL, NULL) == 0);

  /* All of that has not hurt the run. */
  pthread_create(&thread, NULL, plans, NULL);
  EXPECT(meshwright_run_train(run, 3, NULL, NULL) == 0);
  pthread_join(thread, NULL);
  EXPECT(meshwright_run_steps_done(run) == 4);
  EXPECT(meshwright_run_finish(run) == 0);
  REFUSED(meshwright_run_train(run, 0, NULL, NULL), MESHWRIGHT_CONFIGURATION, 101, "finished");
  EXPECT(meshwright_run_steps_done(run) == 4);
  meshwright_run_close(run);
  meshwright_run_close(NULL);
  EXPECT(meshwright_run_rank(NULL) == 0 && strcmp(meshwright_run_folder(NULL), "") == 0);

  /* A file beyond the limit of this process: a failed save, and no signal. */
  other = job_with("run.name", "limited");
  EXPECT(meshwright_run_open(other, NULL, &run) == 0);
  EXPECT(meshwright_run_train(run, 1, NULL, NULL) == 0);
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  REFUSED(meshwright_run_save(run), MESHWRIGHT_DATA, 705, "at most 1000 bytes (RLIMIT_FSIZE)");
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &signals) == 0 && !sigismember(&signals, SIGXFSZ));
  EXPECT(sigpending(&signals) == 0 && !sigismember(&signals, SIGXFSZ));
  meshwright_run_close(run);
  meshwright_job_close(other);

  /* A run that fails while it trains is over, and the next one can be opened. */
  other = job_with("run.name", "nonfinite");
  EXPECT(meshwright_job_set(other, "optimizer.lr", "1e30") == 0);
  EXPECT(meshwright_job_set(other, "optimizer.max_grad_norm", "1e30") == 0);
  EXPECT(meshwright_run_open(other, NULL, &run) == 0);
  REFUSED(meshwright_run_train(run, 0, NULL, NULL), MESHWRIGHT_NUMERICS, 801, "finite");
  REFUSED(meshwright_run_save(run), MESHWRIGHT_CONFIGURATION, 101, "failed");
  meshwright_run_close(run);
  EXPECT(meshwright_run_open(job, NULL, &run) == 0);
  EXPECT(meshwright_run_steps_done(run) == 4); /* checkpoint.every_steps */
  meshwright_run_close(run);
  meshwright_job_close(other);
  meshwright_job_close(job);
}

static void of_generating(void) {
  meshwright_request request;
  const char* const sets[] = {"optimizer.lr=1"};
  meshwright_request_init(&request, sizeof request);
  EXPECT(request.size == sizeof request && request.max_new == 200 && request.seed == 42);
  meshwright_request_init(NULL, sizeof request);
  request.text = "a";
  REFUSED(meshwright_generate("/no/such", NULL, 0, &request, NULL, NULL, NULL),
          MESHWRIGHT_CONFIGURATION, 209, "/no/such");
  REFUSED(meshwright_generate(NULL, NULL, 0, &request, NULL, NULL, NULL), MESHWRIGHT_CONFIGURATION,
          101, "folder");
  REFUSED(meshwright_generate("tests/data/parity/llama", sets, 1, &request, NULL, NULL, NULL),
          MESHWRIGHT_CONFIGURATION, 101, "tokenizer");
}

int main(int argc, char** argv) {
  if (argc != 2) return 100;
  snprintf(file, sizeof file, "%s/job.toml", argv[1]);
  EXPECT(strchr(meshwright_version(), '.') != NULL);
  EXPECT(meshwright_error_code() == 0 && strcmp(meshwright_error_text(), "") == 0);
  of_jobs();
  of_opening();
  of_runs();
  of_generating();
  return wrong;
}
