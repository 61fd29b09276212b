# The house, from the ground up: a folder includes what stands before it, and nothing that stands behind (tests/headers). Whoever is not of the
# SDK includes of it the public headers, sdk/base and sdk/text. Plugins stand on the SDK alone.
set(MESHWRIGHT_FOLDERS
  sdk/include     # the promise: what plugins are written against
  sdk/base        # text, files, processes, what people read
  sdk/planning    # mesh, tensor-parallel plan, sharding plan, footprint; no LibTorch
  sdk/comm        # groups, transports, watchdog
  sdk/nn          # layers, attention, losses, experts, kernels, their memory
  sdk/parallel    # data, tensor, context, pipeline and expert parallel
  sdk/text        # tokenizer, chat templates, corpora
  sdk/kit         # conformance, ranks as threads, templates of plugins
  engine/config      # the file, its schemas, --set
  engine/plugins     # found, judged, loaded
  engine/launch      # ranks are started and find each other, and their devices
  engine/models      # described, and built
  engine/data        # samples
  engine/checkpoint  # kept and read, with the weights of other programs
  engine/job         # the plan of a job, and its picture
  engine/train       # what is wrong before a start, a step, a run
  apps/migrate      # configurations of other programs
  apps/inference    # generate, chat, evaluate
  apps/doctor       # is this machine fit to train?
  apps/performance  # step times predicted, searched, calibrated
  apps/observe      # report, TensorBoard, Prometheus, whom ranks waited for
  apps/prove        # a small form of a job beside one process
  apps/capi         # the library for C
  apps/cli)         # the program
