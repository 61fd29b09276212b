// Threads of a CUDA device that share rows between them. Compiled at run time, without any header:
// every function is one of the device.
namespace meshwright::kernels {

inline float from_half(unsigned short bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}
inline unsigned short to_half(float value) {
  unsigned short out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
}
// Rounded once, which --fmad=false leaves to who asks for it.
inline float multiply_add(float x, float y, float sum) { return fmaf(x, y, sum); }
inline float float_of(unsigned bits) { return __uint_as_float(bits); }
inline unsigned bits_of(float value) { return __float_as_uint(value); }

extern __shared__ float shared_memory[];

// A part of the threads of a block.
template <int threads>
class Team {
 public:
  static constexpr int kOfBlock = kBlock / threads;
  // Which team of how many.
  long long index() const { return (long long)blockIdx.x * kOfBlock + threadIdx.x / threads; }
  long long count() const { return (long long)gridDim.x * kOfBlock; }
  // `body(i)` for each i below n; always on the same thread.
  template <class Body>
  void each(long long n, Body body) const {
    for (long long i = threadIdx.x % threads; i < n; i += threads) body(i);
  }
  // The same, shared with all other teams.
  template <class Body>
  void spread(long long n, Body body) const {
    const long long first = (long long)blockIdx.x * kBlock + threadIdx.x;
    for (long long i = first; i < n; i += (long long)gridDim.x * kBlock) body(i);
  }
  // What all threads have in `step(state, i)` for each i below n, joined. State: 4-byte members.
  template <class State, class Step>
  State reduce(long long n, State state, Step step) const {
    each(n, [&](long long i) { step(state, i); });
    for (int lane = 16; lane > 0; lane /= 2) state.join(of_lane(state, lane));
    if (threads == 32) return state;
    __shared__ State warps[kBlock / 32];
    __syncthreads();  // the last reduction was read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = state;
    __syncthreads();
    state = warps[0];
    for (int warp = 1; warp < threads / 32; ++warp) state.join(warps[warp]);
    return state;
  }
  // What its threads wrote to its memory is there for all of them. Of a whole block only.
  void synchronize() const {
    static_assert(threads == kBlock, "a block");
    __syncthreads();
  }
  // What each thread keeps from one each(threads, ...) to the next.
  template <class State>
  class Own {
   public:
    State& of(long long) { return mine_; }

   private:
    State mine_;
  };
  // Floats of this team alone.
  float* memory(long long size) const { return shared_memory + threadIdx.x / threads * size; }

 private:
  static_assert(threads == 32 || threads == kBlock, "a warp or a block");
  template <class State>
  static State of_lane(const State& state, int away) {
    State out;
    for (int i = 0; i < int(sizeof(State) / 4); ++i)
      ((float*)&out)[i] = __shfl_xor_sync(~0U, ((const float*)&state)[i], away);
    return out;
  }
};

}  // namespace meshwright::kernels

#define MESHWRIGHT_KERNEL(name, arguments, threads, ...)                             \
  extern "C" __global__ void __launch_bounds__(kBlock) name(const arguments given) { \
    __VA_ARGS__(Team<threads>(), given);                                             \
  }
