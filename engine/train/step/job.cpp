

#include "engine/job/plan.h"
#include "engine/launch/device/device.h"
#include "meshwright/trainer.h"

namespace meshwright {

Job::Job() { load(); }
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;
Job::~Job() = default;

Job Job::from_file(const std::string& path, const std::vector<std::string>& overrides) {
  Job job;
  job.path_ = path;
  job.overrides_ = overrides;
  job.load();
  return job;
}

Job Job::from_text(const std::string& toml, const std::vector<std::string>& overrides) {
  Job job;
  job.text_ = toml;
  job.overrides_ = overrides;
  job.load();
  return job;
}

Job& Job::set(const std::string& key, const std::string& value) {
  if (used_.use_count() > 1)
    throw Error(ErrorCode::conflict,
                key + " cannot be set any more: a Trainer was made of this job, and has read it")
        .key(key)
        .help("set it before the Trainer is made")
        .help("destroy the Trainer first, or make another Job, and a Trainer of that");
  overrides_.push_back(key + "=" + value);
  try {
    load();
  } catch (...) {
    overrides_.pop_back();
    throw;
  }
  return *this;
}

void Job::load() {
  config::LoadOptions options;
  options.file = path_;
  options.sets = overrides_;
  Diagnostics diagnostics;
  std::optional<plan::Job> loaded =
      path_.empty()
          ? plan::load_job(config::Source::parse(text_, options, diagnostics), diagnostics)
          : plan::load_job(options, diagnostics);
  diagnostics.throw_if_any();
  impl_ = std::make_unique<plan::Job>(std::move(*loaded));
  // Not yet of one that is still to get its file.
  if (!path_.empty() || !text_.empty() || !overrides_.empty())
    device::load_early(table("dist_env"));
  notices_ = diagnostics.notices();
  notices_.insert(notices_.end(), diagnostics.warnings().begin(), diagnostics.warnings().end());
}

const Options& Job::table(const std::string& name) const { return impl_->config.table(name); }
const std::vector<std::string>& Job::notices() const { return notices_; }

}  // namespace meshwright
