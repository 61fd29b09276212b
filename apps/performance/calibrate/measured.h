// The command line of `calibrate`, for the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/doctor/links.h"
#include "apps/performance/steptime/kernels.h"

namespace meshwright::rendezvous {
class Ending;
}

namespace meshwright::calibrate {

// What products are measured in.
enum class Widths : uint8_t { both, half, full };

struct Request {
  std::string out = "machine.toml";
  double seconds = 30;  // that measuring may take, about
  Widths widths = Widths::both;
  std::vector<std::string> sets = {};
  std::string machines = {};  // folder of the shipped machine files
  bool json = false;
  bool live = false;  // standard error is a terminal
  int width = 80;
  bool colour = false, unicode = true;
};

// Collective over the ranks of the launcher. Meets the others, measures kernels on all ranks at
// once and collectives between them; rank 0 writes the file and prints. 0; throws what keeps the
// ranks from meeting, what breaks in the middle, and Error(output_unwritable), on every rank.
int calibrate_rank(const Request& request, rendezvous::Ending& ending);

// What `calibrate` measured: sizes of kernels, messages and layers, and the seconds that they took.
// The same list on every rank, so that the times of all can be joined.

// y [rows, columns] = x [rows, inner] w^T, or, backward, the two products that make the gradients
// of x and w.
struct ProductTime {
  steptime::Product product;
  steptime::Precision precision = steptime::Precision::full;
  bool backward = false;
  double seconds = 0;
};
// A kernel that only moves bytes.
struct MovedTime {
  std::string kernel;  // "copy", "norm", "gate", "optimizer"
  double bytes = 0;    // read and written
  double seconds = 0;
};
// Causal, in the wider of the measured types on the CPU, in the narrower on a device.
struct AttentionTime {
  double batch = 1, heads = 1, head_dim = 64, length = 0;
  double forward = 0, backward = 0;  // seconds
};
// A model of `layers` gated layers, `batch` samples of `length` tokens. Tiny, as here, its kernels
// take less time than their launches.
struct ModelTime {
  double layers = 0;
  double hidden = 64, ffn = 128, heads = 2, kv_heads = 2, batch = 1, length = 8;
  double forward = 0, backward = 0;  // seconds
};
// A series of products while all-gathers of all ranks are under way, on devices. All seconds are of
// the series, `gathers` those of the all-gathers where nothing else runs.
struct BesideTime {
  double alone = 0, beside = 0, gathers = 0;
};
// The collectives of one kind of groups, all of these groups at once.
struct GroupTime {
  enum class Kind : uint8_t { host, pair, across, all };
  Kind kind = Kind::host;
  steptime::Group group;
  std::vector<doctor::Collective> collectives;
};
// Bytes of the message whose time is Collective::latency.
inline constexpr double kSmallMessage = 4096;

struct Measured {
  std::string device;  // as its driver calls it, or the processor's name
  bool cuda = false;
  double ranks = 1, hosts = 1, ranks_per_host = 1;  // ranks_per_host: of the fullest host
  double memory = 0;                                // bytes that a rank has
  double units = 1;                                 // streaming multiprocessors, or threads
  bool cores_shared = false;  // the ranks of a host have more threads than it has cores
  double ranks_a_core = 1;    // where they are shared
  std::vector<ProductTime> products;
  std::vector<MovedTime> moved;
  std::vector<AttentionTime> attention;
  std::vector<ModelTime> launches;
  std::vector<ModelTime> layers;  // of a size that CPUs train, two of them; devices: none
  // The last product of the main type, forward, on one rank while those beside it wait; 0: none is
  // beside it, or ranks share no processor.
  double alone = 0;
  BesideTime beside;  // 0: one rank, or no device
  std::vector<GroupTime> groups;

  // The memory, and the seconds of all kernels, layers and messages.
  std::vector<double> times() const;
  // Takes the times() of all ranks for one: the least memory and the slowest rank's seconds. Where
  // ranks share cores, the mean of what ranks do in a second instead of the slowest's: one that
  // shares a core with two at a time is three times as slow, and has it alone at another time.
  void take_all(const std::vector<std::vector<double>>& of_ranks);
};

// What is measured: sizes that training has, so small that all of them together take seconds.

// Adds products, kernels, attention and layers without times; `to.cuda` is set.
void add_sizes(Measured& to, Widths widths);
// How many measurements these are.
size_t count_points(const Measured& of);

// Ranks that a collective is measured among.
struct Ranks {
  GroupTime::Kind kind = GroupTime::Kind::host;
  std::string name;
  std::vector<int64_t> ranks;  // of this rank's group
  steptime::Group group;
};
// Those of `rank`. `host`: of each rank, the first rank on its host. The ranks of a host, pairs of
// them, and those with one place on each host; all ranks where hosts have different numbers of
// them. The same kinds on every rank.
std::vector<Ranks> groups_of(const std::vector<int64_t>& host, int64_t rank);

}  // namespace meshwright::calibrate
