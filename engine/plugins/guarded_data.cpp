#include "engine/plugins/guarded_data.h"

#include <utility>

#include "engine/plugins/guard.h"

namespace meshwright::loader {

namespace {

template <class Body>
decltype(auto) run(const detail::PluginCode* plugin, const char* doing, Body&& body) {
  try {
    return guarded(plugin, doing, body);
  } catch (Error& error) {
    if (error.code() == ErrorCode::plugin_foreign_exception) throw;
    throw error.note(fault_context(plugin, doing));
  }
}

class GuardedSource final : public SampleSource {
 public:
  GuardedSource(const detail::PluginCode* plugin, std::unique_ptr<SampleSource> inner)
      : plugin_(plugin), inner_(std::move(inner)) {}
  GuardedSource(const GuardedSource&) = delete;
  GuardedSource& operator=(const GuardedSource&) = delete;
  ~GuardedSource() override {
    detail::PluginCall call(plugin_, "the destructor of its data set");
    inner_.reset();
  }
  int64_t samples() const override {
    return run(plugin_, "samples", [&] { return inner_->samples(); });
  }
  void read(int64_t sample, const SampleView& out) const override {
    run(plugin_, "read", [&] { inner_->read(sample, out); });
  }
  std::string describe() const override {
    return run(plugin_, "describe", [&] { return inner_->describe(); });
  }
  uint64_t fingerprint() const override {
    return run(plugin_, "fingerprint", [&] { return inner_->fingerprint(); });
  }
  bool has_documents() const override {
    return run(plugin_, "has_documents", [&] { return inner_->has_documents(); });
  }
  bool has_weights() const override {
    return run(plugin_, "has_weights", [&] { return inner_->has_weights(); });
  }
  std::vector<std::string> files() const override {
    return run(plugin_, "files", [&] { return inner_->files(); });
  }
  std::vector<std::string> report() const override {
    return run(plugin_, "report", [&] { return inner_->report(); });
  }

 private:
  const detail::PluginCode* plugin_;
  std::unique_ptr<SampleSource> inner_;
};

class GuardedKind final : public DatasetKind {
 public:
  GuardedKind(const detail::PluginCode* plugin, std::shared_ptr<DatasetKind> inner)
      : plugin_(plugin), inner_(std::move(inner)) {}
  GuardedKind(const GuardedKind&) = delete;
  GuardedKind& operator=(const GuardedKind&) = delete;
  ~GuardedKind() override {
    detail::PluginCall call(plugin_, "the destructor of its kind of data set");
    inner_.reset();
  }
  void validate(const DatasetRequest& request, Diagnostics& diagnostics) const override {
    run(plugin_, "validate, checking its options", [&] { inner_->validate(request, diagnostics); });
  }
  void prepare(const DatasetRequest& request) const override {
    run(plugin_, "prepare", [&] { inner_->prepare(request); });
  }
  std::unique_ptr<SampleSource> open(const DatasetRequest& request) const override {
    std::unique_ptr<SampleSource> source =
        run(plugin_, "open, opening its data set", [&] { return inner_->open(request); });
    if (!source) return nullptr;
    return std::make_unique<GuardedSource>(plugin_, std::move(source));
  }
  void* extension(uint32_t id) override {
    return run(plugin_, "extension", [&] { return inner_->extension(id); });
  }

 private:
  const detail::PluginCode* plugin_;
  std::shared_ptr<DatasetKind> inner_;
};

}  // namespace

std::shared_ptr<DatasetKind> guarded_kind(const LoadedPlugin& plugin,
                                          std::shared_ptr<DatasetKind> inner) {
  return std::make_shared<GuardedKind>(plugin.code, std::move(inner));
}

}  // namespace meshwright::loader
