#include "apps/performance/steptime/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/toml_value.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/words.h"

namespace meshwright::steptime {

// Slips of the unit in a machine file whose figures are each within what some machine has: peaks
// beside the bandwidth of the memory, and what a processor may have and no device.

namespace {

// Operations that a device has for a byte of its memory: shipped files have 10 to 850.
constexpr double kMostForAByte = 5000;

struct Peak {
  const char* name;
  double value, least;  // operations for a byte

  std::string key() const { return std::string("peak.") + name; }
  bool low(double bandwidth) const { return value < least * bandwidth; }
  bool fits(double bandwidth) const {
    return !low(bandwidth) && value <= kMostForAByte * bandwidth;
  }
};

struct Slip {
  bool of_memory = false;
  std::string mended;  // "device.bandwidth = 3.35e+12"; empty: nobody knows
};

// No device of today or of the next years has more, and none takes longer; nor has any less.
struct DeviceRange {
  const char* key;
  double most;
  const char* unit;  // what it is counted in
  double units;      // so many times as much as what it may have been given in; 0: nobody knows
  double least = 0;
};
constexpr double kBits = 8;

// 4.8e+12 as in the file, short.
std::string shown(double value) { return config::to_toml(config::number_value(value)); }

std::string setting(const std::string& key, double value) { return key + " = " + shown(value); }

// Those that have to fit to the bandwidth. Of a processor it is the fastest alone: a type that it
// has no instructions for takes a hundred times as long; and caches count into its bandwidth.
std::vector<Peak> peaks_that_fit(const Machine& m) {
  const bool processor = m.overlap.adds;
  const double least = processor ? 0.1 : 2, of_float32 = processor ? 0.1 : 0.2;
  std::vector<Peak> out{{"bf16", m.peak_bf16, least},
                        {"fp8", m.peak_fp8, least},
                        {"fp32", m.peak_fp32, of_float32},
                        {"tf32", m.peak_tf32, of_float32}};
  std::erase_if(out, [](const Peak& peak) { return peak.value == 0; });
  if (!processor || out.empty()) return out;
  return {*std::ranges::max_element(out, {}, &Peak::value)};
}

// What makes the peaks that are `off` fit: another of the usual units of theirs, or of a bandwidth
// that memory of such machines has. `low`: they are too small, else too large; `all`: there are no
// others.
Slip slip_of(const Machine& machine, const std::vector<Peak>& off, bool low, bool all) {
  for (const double unit : {1e3, 1e6, 1e9}) {
    const double other = low ? machine.bandwidth / unit : machine.bandwidth * unit;
    const bool is_memory =
        machine.overlap.adds ? other >= 1e8 && other <= 2e12 : other >= 2e10 && other <= 1e14;
    if (all && is_memory &&
        std::ranges::all_of(off, [&](const Peak& peak) { return peak.fits(other); }))
      return {true, setting("device.bandwidth", other)};
    bool fit = true;
    std::string mended;
    for (Peak peak : off) {
      peak.value = low ? peak.value * unit : peak.value / unit;
      fit = fit && peak.fits(machine.bandwidth);
      mended += (mended.empty() ? "" : " and ") + setting(peak.key(), peak.value);
    }
    if (fit) return {false, mended};
  }
  return {};
}

// nullptr: what any machine may have is all that is known.
const DeviceRange* range_of_devices(std::string_view key) {
  static constexpr DeviceRange kRanges[] = {
      {"device.memory", 4e12, "in bytes, 1e9 a gigabyte", 1e3},
      {"device.units", 1000, "streaming multiprocessors, not CUDA cores", 0},
      {"network.bus", 2e12, "in bytes, not bits", kBits, 1e9},
      {"network.nic", 200e9, "in bytes, not bits", kBits, 1e7},
      {"network.nic_attained", 1, "as a share of 1", 0, 0.1},
      {"network.send_outside", 200e9, "in bytes, not bits", kBits},
      {"network.step_inside", 1e-3, "in seconds, not milliseconds", 1e3},
      {"network.step_outside", 2e-3, "in seconds, not milliseconds", 1e3},
      {"network.send_latency_inside", 1e-3, "in seconds, not milliseconds", 1e3},
      {"network.send_latency_outside", 2e-3, "in seconds, not milliseconds", 1e3},
      {"host.layer_forward", 0.05, "in seconds, not milliseconds", 1e3},
      {"host.layer_backward", 0.05, "in seconds, not milliseconds", 1e3},
      {"host.fixed", 1, "in seconds, not milliseconds", 1e3},
  };
  const auto* const found = std::ranges::find(kRanges, key, &DeviceRange::key);
  return found == std::end(kRanges) ? nullptr : found;
}

// The value, were it in that unit; 0: it would be too much still, or nobody knows.
double in_other_unit(const DeviceRange& of, double value) {
  if (of.units == 0) return 0;
  const double other = value / of.units;
  return other <= of.most ? other : 0;
}

}  // namespace

std::vector<Figure> figures_of(Machine& m) {
  const char* const share = "a share of the peak";
  return {
      {"device", "memory", &m.memory, 1e8, 1e14, "bytes of the device"},
      {"device", "units", &m.units, 1, 1e5, "streaming multiprocessors, or cores", true, true},
      {"device", "bandwidth", &m.bandwidth, 1e8, 1e15, "bytes a second of its memory"},
      {"device", "outside", &m.outside, 0, 1e12, "bytes that no job can have", false},
      {"peak", "bf16", &m.peak_bf16, 1e8, 1e17, "operations a second, dense"},
      {"peak", "fp8", &m.peak_fp8, 1e8, 1e17, "operations a second, dense", false},
      {"peak", "fp32", &m.peak_fp32, 1e8, 1e17, "operations a second, dense"},
      {"peak", "tf32", &m.peak_tf32, 1e8, 1e17, "operations a second, dense", false},
      {"rate", "product", &m.rate.product, 0.01, 1, share},
      {"rate", "product_fp8", &m.rate.product_fp8, 0.01, 1, share, false},
      {"rate", "elementwise", &m.rate.elementwise, 0.01, 1, "a share of the bandwidth"},
      {"rate", "attention", &m.rate.attention, 0.001, 1, share},
      {"rate", "attention_fa2", &m.rate.attention_fa2, 0.001, 1, share, false},
      {"rate", "attention_triton", &m.rate.attention_triton, 0.001, 1, share, false},
      {"rate", "unfused", &m.rate.unfused, 0.001, 1, "a share of rate.product"},
      {"rate", "short_inner", &m.rate.short_inner, 0, 1e5, "elements of an inner dimension", false},
      {"rate", "attention_backward", &m.rate.attention_backward, 0.05, 5,
       "a share of the forward's rate", false},
      {"rate", "short_sequence", &m.rate.short_sequence, 0, 1e5, "tokens of a rank", false},
      {"rate", "optimizer", &m.rate.optimizer, 0.01, 10, "a share of the bandwidth", false},
      {"network", "ranks_per_host", &m.network.ranks_per_host, 1, kMostRanksOfAHost, "ranks", true,
       true},
      {"network", "bus", &m.network.bus, 1e6, 1e14, "bytes a second, a ring inside a host"},
      {"network", "nic", &m.network.nic, 1e6, 1e13, "bytes a second of a rank to other hosts"},
      {"network", "nic_attained", &m.network.nic_attained, 0.01, 1, "a share of network.nic"},
      {"network", "step_inside", &m.network.step_inside, 0, 0.1, "seconds a ring step"},
      {"network", "step_outside", &m.network.step_outside, 0, 0.1, "seconds a ring step"},
      {"network", "in_switch", &m.network.in_switch, 1, 4, "an all-reduce's gain", false},
      {"network", "pair", &m.network.pair, 0.01, 1, "a share of network.bus", false},
      {"network", "send_inside", &m.network.send_inside, 1e6, 1e14,
       "bytes a second of a pipeline's message inside a host", false},
      {"network", "send_outside", &m.network.send_outside, 1e6, 1e13,
       "bytes a second of a pipeline's message to another host", false},
      {"network", "send_latency_inside", &m.network.send_latency_inside, 0, 0.1,
       "seconds of an empty message", false},
      {"network", "send_latency_outside", &m.network.send_latency_outside, 0, 0.1,
       "seconds of an empty message", false},
      {"overlap", "kappa", &m.overlap.kappa, 0, 1, "a share of a hidden collective's time"},
      {"overlap", "async_tp", &m.overlap.async_tp, 0, 1, "a share of the exchanges", false},
      {"overlap", "async_tp_buffers", &m.overlap.async_tp_buffers, 0, 1, "a share of the exchanges",
       false},
      {"overlap", "alone", &m.overlap.alone, 1, 1024, "times as fast while others wait", false},
      {"overlap", "jitter", &m.overlap.jitter, 0, 0.2, "a share of a step a doubling"},
      {"host", "layer_forward", &m.host.layer_forward, 0, 1, "seconds to launch a layer"},
      {"host", "layer_backward", &m.host.layer_backward, 0, 1, "seconds to launch a layer"},
      {"host", "fixed", &m.host.fixed, 0, 10, "seconds a step"},
  };
}

namespace {

namespace fs = std::filesystem;
using config::Entry;
using config::Value;

class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}

  Machine read(const std::string& text) {
    Diagnostics diagnostics;
    const std::optional<Value> root = config::parse_toml(text, path_, diagnostics);
    diagnostics.throw_if_any();
    Machine machine;
    const std::vector<Figure> figures = figures_of(machine);
    check_names(*root, figures);
    const Value* schema = value_of(*root, "schema");
    if (schema == nullptr || schema->kind != Value::Kind::integer || schema->integer != 1)
      throw Error(ErrorCode::schema_version, path_ + " is not of schema 1")
          .at(origin(schema == nullptr ? config::Place() : schema->place))
          .help("set schema = 1");
    const Value* name = figure_at(*root, "device", "name");
    if (name == nullptr || name->kind != Value::Kind::string)
      throw missing(*root, "device", "device.name", "the device's name in quotes");
    if (name->text.find_first_not_of(' ') == std::string::npos)
      throw refused("device.name", *name, "is empty")
          .help("set device.name = \"NVIDIA H100 SXM 700 W\", or what the device is called");
    machine.name = name->text;
    if (const Value* reported = figure_at(*root, "device", "reported"))
      machine.reported = names(*reported);
    if (const Value* adds = figure_at(*root, "overlap", "shares_cores")) {
      if (adds->kind != Value::Kind::boolean)
        throw wrong(*adds, "overlap.shares_cores", "true or false");
      machine.overlap.adds = adds->boolean;
    }
    for (const Figure& figure : figures) take(*root, figure);
    if (machine.rate.attention_fa2 == 0) machine.rate.attention_fa2 = machine.rate.attention;
    if (machine.rate.attention_triton == 0) machine.rate.attention_triton = machine.rate.attention;
    if (machine.outside >= machine.memory) throw nothing_left(*root, machine);
    check_balance(*root, machine);
    check_narrow(*root, "fp8", machine.peak_fp8, "bf16", machine.peak_bf16);
    check_narrow(*root, "tf32", machine.peak_tf32, "fp32", machine.peak_fp32);
    read_sources(*root, figures, machine);
    if (!machine.overlap.adds)
      for (const Figure& figure : figures) check_typed(*root, figure, machine);
    return machine;
  }

 private:
  static const Value* value_of(const Value& table, std::string_view name) {
    const Entry* entry = table.find(name);
    return entry == nullptr ? nullptr : &entry->value;
  }
  static const Value* figure_at(const Value& root, std::string_view table, std::string_view name) {
    const Value* in = value_of(root, table);
    return in == nullptr || !in->is_table() ? nullptr : value_of(*in, name);
  }
  Origin origin(const config::Place& place) const {
    return {Origin::Source::file, path_, place.line, place.column};
  }
  // A value that can be read and makes no sense. `what`: behind the key.
  Error refused(const std::string& key, const Value& value, const std::string& what) const {
    return Error(ErrorCode::out_of_range, key + " " + what).key(key).at(origin(value.place));
  }
  Error wrong(const Value& value, const std::string& key, const std::string& wants) const {
    return Error(ErrorCode::wrong_type, key + " is " + config::found_text(value) + ", not " + wants)
        .key(key)
        .at(origin(value.place))
        .help("write " + wants + " without quotes");
  }
  // Its place is that of the table that should have it, where there is one.
  Error missing(const Value& root, std::string_view table, const std::string& key,
                const std::string& means) const {
    const Entry* in = root.find(table);
    return Error(ErrorCode::missing_key, path_ + " does not say " + key + ": " + means)
        .key(key)
        .at(origin(in == nullptr ? config::Place() : in->place))
        .help("add " + key + "; configs/machines holds complete files to start from");
  }

  // A tenth always fits. A memory below what is assumed where a file does not say may be the slip.
  Error nothing_left(const Value& root, const Machine& machine) const {
    const double assumed = Machine().outside;
    const Value* memory = figure_at(root, "device", "memory");
    const Value* outside = figure_at(root, "device", "outside");
    const Value* place = outside == nullptr ? memory : outside;
    Error error(ErrorCode::out_of_range,
                "device.outside " + shown(machine.outside) +
                    (outside == nullptr ? ", as where a file does not say it," : "") +
                    " leaves nothing of device.memory " + shown(machine.memory));
    error.key("device.outside")
        .about("device.memory")
        .at(origin(place == nullptr ? config::Place() : place->place))
        .help("set device.outside = " + shown(std::floor(machine.memory / 10)));
    if (machine.memory <= assumed)
      error.help("where the device has more, give device.memory in bytes: all of them");
    return error;
  }

  std::vector<std::string> names(const Value& value) const {
    std::vector<std::string> out;
    for (const Value& item : value.items)
      if (item.kind == Value::Kind::string) out.push_back(item.text);
    if (value.kind != Value::Kind::list || out.size() != value.items.size())
      throw wrong(value, "device.reported", "a list of names");
    return out;
  }

  // What `calibrate` found is so, however slow the machine was; what somebody wrote may be a slip.
  void check_typed(const Value& root, const Figure& figure, const Machine& machine) const {
    const std::string key = figure.key();
    const DeviceRange* of = range_of_devices(key);
    const Value* value = figure_at(root, figure.table, figure.name);
    if (of == nullptr || value == nullptr) return;
    const bool low = *figure.to < of->least;
    if (!low && *figure.to <= of->most) return;
    const std::string& source = machine.sources.at(key);
    for (const std::string_view found : {std::string_view("measured by meshwright calibrate"),
                                         kAtBound, std::string_view("from a run: ")})
      if (source.starts_with(found)) return;
    Error error = refused(
        key, *value,
        "= " + shown(*figure.to) + " makes no sense as " + figure.means + ": no device has " +
            (low ? "less than " + shown(of->least) : "more than " + shown(of->most)));
    if (low)
      error.help("give " + key + " " +
                 (of->units == kBits ? "in bytes, 1e9 a gigabyte" : of->unit));
    else if (const double other = in_other_unit(*of, *figure.to); other > 0)
      error.help("set " + key + " = " + shown(other) + ": " + of->unit);
    else if (of->units == 0)
      error.help("count " + std::string(of->unit));
    if (!low && of->units == kBits && key != "network.bus")
      error.help("ranks that a switch of devices joins are of one host: network.ranks_per_host");
    throw error.help("meshwright calibrate measures this machine");
  }

  // Each in the range of its own, a peak and the bandwidth can still be a slip of the unit apart.
  void check_balance(const Value& root, const Machine& machine) const {
    const double bandwidth = machine.bandwidth;
    const std::vector<Peak> peaks = peaks_that_fit(machine);
    const auto first =
        std::ranges::find_if(peaks, [&](const Peak& peak) { return !peak.fits(bandwidth); });
    if (first == peaks.end()) return;
    // All that are off the same way. Where these are all there are, the bandwidth may have slipped.
    const bool low = first->low(bandwidth);
    std::vector<Peak> off;
    std::ranges::copy_if(peaks, std::back_inserter(off), [&](const Peak& peak) {
      return !peak.fits(bandwidth) && peak.low(bandwidth) == low;
    });
    const Slip slip = slip_of(machine, off, low, off.size() == peaks.size());
    const Value* peak = figure_at(root, "peak", first->name);
    const Value* memory = figure_at(root, "device", "bandwidth");
    const config::Place peak_at = peak == nullptr ? config::Place() : peak->place,
                        memory_at = memory == nullptr ? config::Place() : memory->place;
    const std::string key = first->key(), likely = slip.of_memory ? "device.bandwidth" : key;
    Error error(
        ErrorCode::out_of_range,
        key + " = " + shown(first->value) + " (line " + std::to_string(peak_at.line) +
            ") and device.bandwidth = " + shown(bandwidth) + " (line " +
            std::to_string(memory_at.line) + ") make no sense together: " +
            text::short_number(first->value / bandwidth) + " operations for a byte, where a " +
            (machine.overlap.adds ? "processor" : "device") + " has " + shown(first->least) +
            " to " + shown(kMostForAByte) + "; likely " + likely + " is in another unit");
    error.key(likely)
        .about(slip.of_memory ? key : "device.bandwidth")
        .at(origin(slip.of_memory ? memory_at : peak_at));
    if (!slip.mended.empty()) error.help("set " + slip.mended);
    throw error.help("give peaks in operations a second and device.bandwidth in bytes a second");
  }

  // Where a file says a peak of a narrower type it is no slower than that of the wider one.
  void check_narrow(const Value& root, const std::string& narrow, double peak,
                    const std::string& wide, double other) const {
    const Value* value = figure_at(root, "peak", narrow);
    if (value == nullptr || peak >= other) return;
    const std::string key = "peak." + narrow;
    throw refused(
        key, *value,
        "= " + shown(peak) + " makes no sense: it is below peak." + wide + ", " + shown(other))
        .help("take " + key + " out, or say what the device's maker does");
  }

  void check_names(const Value& root, const std::vector<Figure>& figures) const {
    std::vector<std::string> known{"schema", "device.name", "device.reported",
                                   "overlap.shares_cores"};
    for (const Figure& figure : figures) known.push_back(figure.key());
    // [source] has figures by their keys, or whole tables.
    std::vector<std::string> sources;
    for (const std::string& key : known)
      if (key != "schema") sources.push_back(config::join_key("source", key));
    for (const Figure& figure : figures)
      if (const std::string table = config::join_key("source", figure.table);
          std::ranges::find(sources, table) == sources.end())
        sources.push_back(table);
    for (const Entry& table : root.entries) {
      const bool is_table = table.value.is_table(), source = table.key == "source";
      if (!is_table && !source && table.key != "schema")
        check_name(table, config::join_key("", table.key), known);
      if (!is_table || table.key == "schema") continue;
      for (const Entry& entry : table.value.entries)
        check_name(entry,
                   source ? config::join_key("source", entry.key) : table.key + "." + entry.key,
                   source ? sources : known);
    }
  }
  void check_name(const Entry& entry, const std::string& key,
                  const std::vector<std::string>& known) const {
    if (std::ranges::find(known, key) != known.end()) return;
    Error error(ErrorCode::unknown_key, "a machine file has no " + key);
    error.key(key).at(origin(entry.place));
    if (const std::string near = nearest_name(key, known); !near.empty())
      error.help("did you mean " + near + "?");
    throw error.help("take " + key + " out");
  }

  void take(const Value& root, const Figure& figure) const {
    const std::string key = figure.key();
    const Value* value = figure_at(root, figure.table, figure.name);
    if (value == nullptr) {
      if (figure.needed) throw missing(root, figure.table, key, figure.means);
      return;
    }
    if (value->kind != Value::Kind::integer && value->kind != Value::Kind::number)
      throw wrong(*value, key, "a number");
    const double number = config::as_number(*value);
    if (!std::isfinite(number) || number < figure.least || number > figure.most)
      throw refused(key, *value,
                    "= " + shown(number) + " makes no sense as " + figure.means +
                        ": it lies between " + shown(figure.least) + " and " + shown(figure.most))
          .help("give " + key + " in plain units: bytes, seconds, operations, shares of 1");
    if (figure.whole && number != std::floor(number))
      throw refused(key, *value, "= " + shown(number) + " is no number of " + figure.means)
          .help("set " + key + " = " + text::whole_number(std::floor(number)));
    *figure.to = number;
  }

  // Where each figure comes from: [source], by figure or by table.
  void read_sources(const Value& root, const std::vector<Figure>& figures, Machine& machine) const {
    const Value* sources = value_of(root, "source");
    for (const Figure& figure : figures) {
      if (figure_at(root, figure.table, figure.name) == nullptr) continue;
      const Value* source = nullptr;
      std::string named = figure.key();
      if (sources != nullptr && sources->is_table()) {
        source = value_of(*sources, named);
        if (source == nullptr) source = value_of(*sources, named = figure.table);
      }
      if (source == nullptr || source->kind != Value::Kind::string)
        throw missing(root, "source", "source.\"" + figure.key() + "\"",
                      "where the figure comes from");
      if (source->text.find_first_not_of(' ') == std::string::npos) {
        named = config::join_key("source", named);
        throw refused(named, *source, "is empty")
            .help("set " + named + " = \"published: data sheet\", or where the figure comes from")
            .help("set " + named + " = \"guessed\" where nobody knows");
      }
      if (source->text.starts_with("guessed")) machine.guessed.push_back(figure.key());
      if (source->text.starts_with(kAtBound)) machine.at_bound.push_back(figure.key());
      machine.sources[figure.key()] = source->text;
    }
  }

  std::string path_;
};

constexpr size_t kMostSuggested = 3;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (entry.path().extension() == ".toml") out.push_back(entry.path().stem().string());
  std::ranges::sort(out);
  return out;
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& path) {
  return File(path).read(text);
}

Machine read_machine(const std::string& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed))
    throw Error(ErrorCode::file_unreadable, "there is no machine file " + path)
        .help("name a file of the form of configs/machines/h100.toml, or a shipped machine");
  return parse_machine(base::read_file(path), path);
}

std::optional<Machine> machine_reported(const std::string& device, const std::string& folder) {
  for (const std::string& name : names_in(folder)) {
    try {
      Machine machine = read_machine(folder + "/" + name + ".toml");
      if (machine.name == device ||
          std::ranges::find(machine.reported, device) != machine.reported.end())
        return machine;
    } catch (const Error&) {
      // Somebody's broken file: who asks for that machine by name is told.
    }
  }
  return std::nullopt;
}

Machine find_machine(const std::string& name, const std::string& folder) {
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) return read_machine(name);
  const std::vector<std::string> names = names_in(folder);
  auto shipped = [&](const std::string& wanted) {
    return std::ranges::find(names, wanted) != names.end();
  };
  if (shipped(name)) return read_machine(folder + "/" + name + ".toml");
  std::string device = name, ranks;  // ranks: "x8"
  if (const size_t x = name.rfind('x'); x != std::string::npos && x + 1 < name.size()) {
    const std::string count = name.substr(x + 1);
    device = name.substr(0, x);
    const bool digits = count.find_first_not_of("0123456789") == std::string::npos,
               allowed = digits && count.size() <= 9 && std::stoi(count) >= 1 &&
                         std::stoi(count) <= kMostRanksOfAHost;  // what a file may say
    if (digits && shipped(device)) {
      if (!allowed)
        throw Error(ErrorCode::out_of_range, name + ": a host has 1 to " +
                                                 std::to_string(kMostRanksOfAHost) +
                                                 " ranks, not " + count)
            .key("--machine")
            .help("--machine " + device + "x8");
      Machine machine = read_machine(folder + "/" + device + ".toml");
      machine.network.ranks_per_host = std::stoi(count);
      return machine;
    }
    if (allowed) ranks = name.substr(x);
  }
  Error error(ErrorCode::bad_choice,
              "no machine is called " + name + "; there are " +
                  (names.empty() ? "none in " + folder : text::join(names, ", ")));
  error.key("--machine");
  // What was typed may be the beginning of a name, as a100 is; else a slip.
  const std::string typed = text::normal(device);
  size_t begun = 0;
  for (const std::string& one : names)
    if (!typed.empty() && begun < kMostSuggested && text::normal(one).starts_with(typed)) {
      error.help("--machine " + one + ranks);
      ++begun;
    }
  if (const std::string near = nearest_name(device, names); begun == 0 && !near.empty())
    error.help("--machine " + near);
  error.help("--machine h100x8 takes the figures of h100 with 8 ranks a host");
  throw error.help("--machine FILE.toml reads a machine of your own");
}

namespace {

std::string quoted(const std::string& text) { return config::to_toml(config::Value(text)); }

const char* heading(std::string_view table) {
  if (table == "device") return "[device]  # bytes, bytes a second";
  if (table == "peak") return "[peak]  # operations a second, dense";
  if (table == "rate") return "[rate]  # shares of the peaks and of the bandwidth";
  if (table == "network") return "[network]  # bytes a second of a rank; seconds a ring step";
  if (table == "overlap") return "[overlap]";
  return "[host]  # seconds to launch a layer, and of a step";
}

}  // namespace

std::string machine_text(const Machine& machine, const std::map<std::string, std::string>& sources,
                         const std::string& comment) {
  Machine copy = machine;
  std::string out, last, from = "\n[source]  # of each figure\n";
  for (const std::string& line : text::split(comment, '\n')) out += "# " + line + "\n";
  out += "schema = 1\n";
  for (const Figure& figure : figures_of(copy)) {
    const auto source = sources.find(figure.key());
    if (source == sources.end()) {
      if (figure.needed) throw Error(ErrorCode::internal, "no source of " + figure.key());
      continue;
    }
    if (last != figure.table) {
      last = figure.table;
      out += "\n" + std::string(heading(last)) + "\n";
      if (last == "device") {
        out += "name = " + quoted(machine.name) + "\n";
        std::vector<std::string> names;
        for (const std::string& name : machine.reported) names.push_back(quoted(name));
        if (!names.empty()) out += "reported = [" + text::join(names, ", ") + "]\n";
      }
      if (last == "overlap" && machine.overlap.adds) out += "shares_cores = true\n";
    }
    out += std::string(figure.name) + " = " + text::short_number(*figure.to, 4) + "\n";
    from += quoted(figure.key()) + " = " + quoted(source->second) + "\n";
  }
  return out + from;
}

}  // namespace meshwright::steptime
