// What a refusal proposes is accepted: each setting, world and flag that it names is applied.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <regex>

#include "ran.h"
#include "sdk/comm/tests/sampled.h"
#include "tests/contents.h"

namespace helps_test {

namespace {

std::vector<std::string> helps_of(const std::string& arguments, int status = 3) {
  std::vector<std::string> out;
  const json::object said = answer("plan " + arguments, status);
  for (const json::value& help : said.at("error").at("help").as_array())
    out.emplace_back(help.as_string());
  return out;
}

// A search, and what a refusal of it proposes.
struct Search {
  std::string job, machine = "h100";
  int64_t world = 64;
  std::string flags;
  std::string names = {};  // one of the proposals; empty: whichever

  std::string text() const {
    return job + " --machine " + machine + " --world-size " + std::to_string(world) +
           " --search --top 1 " + flags;
  }
};

// The flag NAME with what follows it, "--fix tp_size=" with its number, is `now`; one that was not
// given is added.
void replace_flag(std::string& flags, const std::string& begin, const std::string& now) {
  const size_t at = flags.find(begin);
  if (at == std::string::npos) {
    flags += " " + now;
    return;
  }
  const size_t end = std::min(flags.find(' ', at + begin.size()), flags.size());
  flags.replace(at, end - at, now);
}

std::string number_after(const std::string& text, const std::string& begin) {
  const size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find_first_not_of("0123456789.", at) - at);
}

// configs/machines/NAME.toml with so much for a rank, whose device takes 2.7e9 bytes for itself.
std::string machine_with(const std::string& name, double bytes) {
  std::string text = contents(MESHWRIGHT_SOURCE_DIR "/configs/machines/" + name + ".toml");
  REQUIRE(text.find("outside = 2.7e9") != std::string::npos);
  const std::string begin = "memory = ";
  const size_t at = text.find(begin) + begin.size(), end = text.find(',', at);
  text.replace(at, end - at, std::to_string(std::llround(std::ceil(bytes + 2.7e9))) + ".0");
  const std::string path = MESHWRIGHT_BUILD_DIR "/helps_machine.toml";
  std::ofstream(path) << text;
  return path;
}

// "set a.b = 2 and c.d = x" as --set takes it; empty: it says something else.
std::string as_sets(const std::string& help) {
  static const std::regex setting(R"(([a-z_]+(?:\.[a-z0-9_]+)+) = ([^\s,;:]+))");
  std::string out;
  if (!help.starts_with("set ")) return out;
  for (std::sregex_iterator it(help.begin(), help.end(), setting), end; it != end; ++it)
    out += " --set '" + it->str(1) + "=" + it->str(2) + "'";
  return out;
}

// The search as the help has it; empty: it is no proposal that a program can follow.
std::string followed(Search search, const std::string& help) {
  const std::string device = "a device with ";
  for (const char* flag : {"--global-batch ", "--max-memory "})
    if (help.starts_with(flag)) {
      replace_flag(search.flags, flag, help);
      return search.text();
    }
  if (help.starts_with("--fix "))
    replace_flag(search.flags, help.substr(0, help.find('=') + 1), help);
  else if (help.find("--world-size ") != std::string::npos)
    search.world = std::stoll(number_after(help, "--world-size "));
  else if (help.starts_with("leave out "))
    for (size_t at; (at = search.flags.find("--fix ")) != std::string::npos;)
      search.flags.erase(at, std::min(search.flags.find(' ', at + 6), search.flags.size()) - at);
  else if (help.starts_with(device) && help.find(" GiB for a rank") != std::string::npos)
    search.machine =
        machine_with(search.machine, std::stod(number_after(help, device)) * std::exp2(30));
  else if (const std::string sets = as_sets(help); !sets.empty())
    search.flags += sets;
  else
    return "";
  return search.text();
}

}  // namespace

TEST_CASE("verbs that start ranks try what they propose") {
  struct Row {
    std::string arguments, proposes, does_not;
  };
  const std::string job = " configs/first_fsdp2_cpu.toml", folder = " tests/data/nets/llama",
                    fsdp2 = " --set distributed.strategy=fsdp2",
                    three = " --nproc 4 --set distributed.tp_size=3",
                    two = "set distributed.tp_size = 2",
                    four = "set distributed.tp_size = 4";  // of two key-value heads
  for (const Row& row : std::vector<Row>{
           {"train" + job + three, two, four},
           {"doctor" + job + three, two, four},
           {"generate" + folder + " --tokens 1" + fsdp2 + three, two, four},
           {"evaluate" + folder + " --kind mock --seq-len 32" + fsdp2 + three, two, four},
           // The batch that generating amounts to is one for six ranks then.
           {"generate" + folder + " --tokens 1" + fsdp2 + " --nproc 5 --set distributed.tp_size=2",
            "use a world size of 6", "set distributed.tp_size = 5"}}) {
    CAPTURE(row.arguments);
    const Ran ran = run(row.arguments, "2>&1");
    INFO(ran.out);
    CHECK(ran.status == 3);
    CHECK(ran.says(row.proposes));
    CHECK_FALSE(ran.says(row.does_not));
  }
}

TEST_CASE("every size, batch, world and memory that a refused search proposes finds a layout") {
  size_t turn = 0;  // half
  for (const Search& search : {
           Search{.job = "configs/hsdp_tp.toml", .flags = "--fix tp_size=16"},
           Search{.job = "configs/hsdp_tp.toml", .world = 8, .flags = "--fix local_batch_size=3"},
           Search{.job = "configs/hsdp_tp.toml", .world = 7, .flags = ""},
           Search{.job = "configs/hsdp_tp.toml",
                  .world = 32,
                  .flags = "--global-batch 16 --fix pp_size=32"},
           Search{.job = "configs/moe_ep.toml", .world = 32, .flags = "--fix ep_size=3"},
           Search{.job = "configs/pipeline_64.toml",
                  .flags = "--global-batch 64 --fix local_batch_size=7"},
           Search{.job = "configs/pipeline_64.toml", .machine = "a100-40", .world = 8, .flags = ""},
           Search{.job = "configs/hsdp_tp.toml", .world = 8, .flags = "--max-memory 5"},
           // That one stage would do is not all that there is to say.
           Search{.job = "configs/pipeline_64.toml",
                  .flags = "--fix pp_size=64",
                  .names = "--fix pp_size=8"},
           // It is the copies that take the memory.
           Search{.job = "configs/pipeline_64.toml",
                  .flags = "--fix dp_replicate_size=32",
                  .names = "--fix dp_replicate_size=2"},
       }) {
    if (!meshwright::sampled(turn++, 2)) continue;
    CAPTURE(search.text());
    size_t applied = 0;
    const std::vector<std::string> helps = helps_of(search.text());
    if (!search.names.empty()) {
      CAPTURE(search.names);
      CHECK(std::count(helps.begin(), helps.end(), search.names) == 1);
    }
    for (const std::string& help : helps) {
      CAPTURE(help);
      const std::string other = followed(search, help);
      if (other.empty()) continue;
      const Ran ran = run("plan " + other, "2>&1");
      INFO(ran.out);
      CHECK(ran.status == 0);
      ++applied;
    }
    CHECK(applied > 0);
  }
}

TEST_CASE("a batch beyond all training is answered with one that the ranks divide") {
  const Search search{.job = "configs/hsdp_tp.toml", .world = 7, .flags = "--global-batch 2000000"};
  const std::vector<std::string> helps = helps_of(search.text(), 2);
  REQUIRE(helps.size() == 1);
  CHECK(helps[0] == "--global-batch 1022");
  CHECK(run("plan " + followed(search, helps[0])).status == 0);
}

TEST_CASE("what --why proposes is a layout, in words of the table and flags of the search") {
  size_t turn = 0;  // half
  struct Row {
    const char *why, *flags;
    const char* job = "hsdp_tp";
    const char* names = "";  // one of the proposals
  };
  for (const Row& row : {Row{"tp3", ""}, Row{"tp2 dp4", ""}, Row{"dp64", "--global-batch 96"},
                         Row{"ddp tp2", ""}, Row{"pp64", "", "pipeline_64", "--why 'pp16'"},
                         Row{"replicas64", "", "hsdp_tp", "--why 'replicas32'"},
                         Row{"tp2 16x1", "--global-batch 256", "hsdp_tp", "--why 'tp2 8x1'"},
                         Row{"tp2 3x1", "--global-batch 256", "hsdp_tp", "--why 'tp2 4x2'"},
                         Row{"pp16 v3", "", "hsdp_tp", "--why 'pp16 v2'"},
                         Row{"tp8 pp8 v3", "", "pipeline_64", "--why 'tp8 pp8 v2'"}}) {
    if (!meshwright::sampled(turn++, 2)) continue;
    CAPTURE(row.why);
    const Search search{.job = std::string("configs/") + row.job + ".toml", .flags = row.flags};
    auto asked = [&](const std::string& words) {
      return answer("plan " + words).at("why").as_object();
    };
    const std::string why = " --why '" + std::string(row.why) + "'";
    const json::object refused = asked(search.text() + why);
    REQUIRE(refused.at("refused").is_object());
    size_t applied = 0;
    bool named = *row.names == '\0';
    for (const json::value& said : refused.at("refused").at("help").as_array()) {
      const std::string help(said.as_string());
      named = named || help == row.names;
      CAPTURE(help);
      CHECK(help.find("step_scheduler.global_batch_size") == std::string::npos);
      const bool words = help.starts_with("--why ");
      const std::string other = words ? search.text() + " " + help : followed(search, help) + why;
      CHECK(asked(other).at("refused").is_null());
      ++applied;
    }
    CHECK(named);
    CHECK(applied > 0);
  }
}

TEST_CASE("every setting and every world that a refused plan names is planned") {
  struct Row {
    const char* job;
    int64_t world;
    const char* sets;
  };
  for (const Row& row : {
           // A size that the mesh takes may not divide copies, heads or experts.
           Row{"hsdp_tp", 8, "distributed.tp_size=3"},
           Row{"hsdp_tp", 64, "distributed.tp_size=16"},
           Row{"hsdp_tp", 64, "distributed.dp_replicate_size=3"},
           Row{"hsdp_tp", 64, "distributed.cp_size=3"},
           Row{"hsdp_tp", 64, "step_scheduler.global_batch_size=100"},
           Row{"hsdp_tp", 64, "step_scheduler.local_batch_size=3"},
           Row{"moe_ep", 32, "distributed.ep_size=3"},
           Row{"moe_ep", 24, "distributed.ep_size=16 --set step_scheduler.global_batch_size=48"},
           Row{"pipeline_64", 64, "distributed.pp_size=3"},
           Row{"pipeline_64", 64, "distributed.pipeline.layers_per_stage=3"},
       }) {
    const std::string job = std::string("configs/") + row.job + ".toml --world-size ",
                      set = std::string(" --set ") + row.sets;
    CAPTURE(job);
    CAPTURE(set);
    size_t applied = 0;
    for (const std::string& help : helps_of(job + std::to_string(row.world) + set)) {
      CAPTURE(help);
      const std::string sets = as_sets(help), world = "use a world size of ";
      std::string changed;
      if (!sets.empty())
        changed = std::to_string(row.world) + set + sets;
      else if (help.starts_with(world))
        changed = help.substr(world.size()) + set;
      if (changed.empty()) continue;
      const Ran ran = run("plan " + job + changed, "2>&1");
      INFO(ran.out);
      CHECK(ran.status == 0);
      ++applied;
    }
    CHECK(applied > 0);
  }
}

}  // namespace helps_test
