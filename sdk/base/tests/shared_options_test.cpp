// The words and grammars of the shared options.
#include <doctest/doctest.h>

#include "meshwright/shared_options.h"
#include "meshwright/typed_options.h"
#include "sdk/base/shared_schemas.h"

using namespace meshwright;

namespace {

using Values = std::vector<std::pair<std::string, OptionValue>>;

SharedOptions read(const Values& distributed, const Values& pipeline, Diagnostics& diagnostics) {
  Options d(distributed_schema()), p(pipeline_schema());
  for (const auto& [key, value] : distributed) d.set(key, value);
  for (const auto& [key, value] : pipeline) p.set(key, value);
  return read_shared_options(d, Options(mp_policy_schema()), Options(moe_schema()),
                             Options(moe_mp_policy_schema()), p, Options(context_schema()),
                             diagnostics);
}

}  // namespace

TEST_CASE("the checkpointing scope has its grammar") {
  using Scope = std::vector<std::string>;
  auto list = [](Scope items) { return OptionValue(std::move(items)); };
  struct Row {
    OptionValue value;
    Scope scope;  // empty = refused
  };
  for (const Row& row : {Row{std::string("language+vision"), {"language", "vision"}},
                         Row{std::string("vision,audio"), {"vision", "audio"}},
                         Row{list({"language", "vision"}), {"language", "vision"}},
                         Row{std::string("auto"), {"all"}}, Row{std::string("default"), {"all"}},
                         Row{OptionValue(), {"all"}}, Row{std::string(""), {"all"}},
                         Row{std::string("Vision, vision"), {"vision"}},
                         Row{list({"language+audio", "audio"}), {"language", "audio"}},
                         Row{std::string("multimodal"), {"multimodal"}},
                         Row{std::string("all+vision"), {}}, Row{std::string("encoder"), {}},
                         Row{std::string("trainable"), {}}, Row{OptionValue(int64_t{1}), {}}}) {
    CAPTURE(to_toml(row.value));
    if (row.scope.empty())
      CHECK_THROWS_AS(parse_checkpointing_scope(row.value), Error);
    else
      CHECK(parse_checkpointing_scope(row.value) == row.scope);
  }
}

TEST_CASE("activation checkpointing is none, full or selective in many words") {
  using enum ActivationCheckpointing;
  for (const char* word : {"false", "off", "none", "disabled", "no", "OFF"})
    CHECK(parse_activation_checkpointing(std::string(word)) == none);
  for (const char* word : {"true", "on", "full", "enabled", "yes", "Full"})
    CHECK(parse_activation_checkpointing(std::string(word)) == full);
  CHECK(parse_activation_checkpointing(std::string("Selective")) == selective);
  CHECK(parse_activation_checkpointing(true) == full);
  CHECK(parse_activation_checkpointing(false) == none);
  CHECK(parse_activation_checkpointing(OptionValue()) == none);
  CHECK_THROWS_AS(parse_activation_checkpointing(std::string("some")), Error);
  CHECK_THROWS_AS(parse_activation_checkpointing(int64_t{1}), Error);
}

TEST_CASE("dtypes have PyTorch's names, long, short and with its prefix") {
  const std::vector<std::pair<const char*, DType>> rows = {
      {"float", DType::float32},     {"float32", DType::float32}, {"float64", DType::float64},
      {"double", DType::float64},    {"float16", DType::float16}, {"half", DType::float16},
      {"bfloat16", DType::bfloat16}, {"bf16", DType::bfloat16},   {"int8", DType::int8},
      {"int16", DType::int16},       {"int32", DType::int32},     {"int64", DType::int64},
      {"long", DType::int64},        {"int", DType::int32},       {"short", DType::int16},
      {"bool", DType::boolean}};
  for (const auto& [name, dtype] : rows) {
    CHECK(parse_dtype(name) == dtype);
    CHECK(parse_dtype(std::string("torch.") + name) == dtype);
  }
  for (const char* bad : {"", "torch.", "float8", "Float32", "fp32"})
    CHECK_THROWS_AS(parse_dtype(bad), Error);
}

TEST_CASE("sizes below one, none and auto mean inferred or one; text is a type error") {
  Diagnostics diagnostics;
  for (OptionValue value : {OptionValue(int64_t{0}), OptionValue(int64_t{-3}),
                            OptionValue(std::string("none")), OptionValue(std::string("auto"))}) {
    SharedOptions o = read({{"dp_size", value}, {"tp_size", value}, {"dp_replicate_size", value}},
                           {}, diagnostics);
    CHECK(!o.sizes.dp);
    CHECK(o.sizes.tp == 1);
    CHECK(o.sizes.dp_replicate == 1);
  }
  CHECK_THROWS_AS(read({{"tp_size", std::string("2")}}, {}, diagnostics), Error);
  CHECK_THROWS_AS(read({{"tp_size", 2.0}}, {}, diagnostics), Error);
  CHECK(diagnostics.ok());
}

TEST_CASE("a pipeline block without a pipeline warns, a pipeline without a block has defaults") {
  Diagnostics inert;
  read({}, {{"pp_microbatch_size", int64_t{2}}}, inert);
  CHECK(inert.warnings().size() == 1);
  Diagnostics diagnostics;
  SharedOptions o = read({{"pp_size", int64_t{2}}}, {}, diagnostics);
  CHECK(o.pipeline.schedule == "1f1b");
  CHECK(!o.pipeline.dtype);  // the policy's output dtype
  CHECK(diagnostics.warnings().empty());
  o = read({{"pp_size", int64_t{2}}}, {{"dtype", std::string("float32")}}, diagnostics);
  CHECK(o.pipeline.dtype == DType::float32);  // kept, with a warning
  CHECK(diagnostics.warnings().size() == 1);
  Diagnostics narrow;
  o = read({{"pp_size", int64_t{2}}}, {{"dtype", std::string("float16")}}, narrow);
  CHECK(narrow.warnings().size() == 1);
}

TEST_CASE("the mixed-precision policy has its defaults") {
  Diagnostics diagnostics;
  SharedOptions o = read({}, {}, diagnostics);
  CHECK(o.mp.param == DType::bfloat16);
  CHECK(o.mp.reduce == DType::float32);
  CHECK(o.mp.output == DType::bfloat16);
  CHECK(o.mp.cast_forward_inputs);
  CHECK(!o.moe.mp_policy);
}

namespace {

enum class Where : uint8_t { device, host };
struct Own {
  bool flag;
  int64_t count;
  double rate;
  std::string name;
  Where where;
  DType dtype;
  std::vector<std::string> classes;
  std::optional<bool> maybe;
  std::optional<int64_t> depth;
  std::optional<DType> kept;
};
constexpr auto kOwn = typed_options<Own>(
    field(&Own::flag, bool_option("flag", true, "A flag.")),
    field(&Own::count, int_option("count", "3", 0, "A count.")),
    field(&Own::rate, number_option("rate", "2", 0, "A rate, whole or not.")),
    field(&Own::name,
          with_flags(option("name", MESHWRIGHT_STRING, nullptr, "A name."), MESHWRIGHT_OPTIONAL)),
    field(&Own::where, with_flags(choice_option("where", "\"device\"", "device|host", "Where."),
                                  MESHWRIGHT_IGNORE_CASE)),
    field(&Own::dtype, with_flags(option("dtype", MESHWRIGHT_STRING, "\"float32\"", "A dtype."),
                                  MESHWRIGHT_DTYPE)),
    field(&Own::classes, with_flags(option("classes", MESHWRIGHT_STRING_LIST, nullptr, "Classes."),
                                    MESHWRIGHT_OPTIONAL)),
    field(&Own::maybe,
          with_flags(option("maybe", MESHWRIGHT_BOOL, "\"auto\"", "Or not."), MESHWRIGHT_OPTIONAL)),
    field(&Own::depth,
          with_flags(int_option("depth", nullptr, 0, "Or none."), MESHWRIGHT_OPTIONAL)),
    field(&Own::kept, with_flags(option("kept", MESHWRIGHT_STRING, nullptr, "A dtype or none."),
                                 MESHWRIGHT_DTYPE | MESHWRIGHT_OPTIONAL)));

// What field() refuses to compile.
template <class Member>
constexpr bool fits(const meshwright_option& option) {
  return detail::misfit<Member>(option) == nullptr;
}
static_assert(!fits<bool>(int_option("a", "1", 0, "b")));
static_assert(!fits<int64_t>(number_option("a", "1", 0, "b")));
static_assert(!fits<int64_t>(int_option("a", nullptr, 0, "b")));
static_assert(fits<std::optional<int64_t>>(int_option("a", nullptr, 0, "b")));
static_assert(!fits<bool>(with_flags(bool_option("a", true, "b"), MESHWRIGHT_OPTIONAL)));
static_assert(!fits<Where>(option("a", MESHWRIGHT_STRING, "\"x\"", "b")));
static_assert(!fits<std::optional<Where>>(option("a", MESHWRIGHT_STRING, "\"x\"", "b")));
static_assert(!fits<DType>(option("a", MESHWRIGHT_STRING, "\"float32\"", "b")));

}  // namespace

TEST_CASE("options are read as the struct that declares them") {
  Options table(make_schema("distributed.mine", "mine", kOwn.declared));
  Own own = kOwn.read(table);
  CHECK(own.flag);
  CHECK(own.count == 3);
  CHECK(own.rate == 2.0);
  CHECK(own.name.empty());
  CHECK(own.where == Where::device);
  CHECK(own.dtype == DType::float32);
  CHECK(own.classes.empty());
  CHECK((!own.maybe && !own.depth && !own.kept));

  table.set("flag", false);
  table.set("count", int64_t{0});
  table.set("rate", 0.5);
  table.set("name", std::string("n"));
  table.set("where", std::string("HOST"));
  table.set("dtype", std::string("bf16"));
  table.set("classes", std::vector<std::string>{"A", "B"});
  table.set("maybe", false);
  table.set("depth", int64_t{7});
  table.set("kept", std::string("float16"));
  own = kOwn.read(table);
  CHECK((!own.flag && own.count == 0 && own.rate == 0.5 && own.name == "n"));
  CHECK(own.where == Where::host);
  CHECK(own.dtype == DType::bfloat16);
  CHECK(own.classes == std::vector<std::string>{"A", "B"});
  CHECK((own.maybe == false && own.depth == 7 && own.kept == DType::float16));

  CHECK(kOwn.key(table, &Own::depth) == "distributed.mine.depth");
  CHECK(kOwn.name(&Own::kept) == "kept");
  CHECK(kOwn.is_given(table, &Own::depth));
  CHECK(!kOwn.is_given(Options(table.schema()), &Own::depth));
  CHECK_THROWS_AS(kOwn.read(Options(make_schema("t", "o", std::span(kOwn.declared).first(2)))),
                  Error);
}

TEST_CASE("a copy of options or of a configuration is its own, and what was moved from is empty") {
  Options one(make_schema("distributed.mine", "mine", kOwn.declared)), other = one;
  other.set("count", int64_t{9});
  CHECK(kOwn.read(one).count == 3);
  Options taken = std::move(other);
  CHECK(kOwn.read(taken).count == 9);
  StrategyConfig config, second;
  config.sizes().tp = 4;
  second = config;
  second.sizes().tp = 2;
  CHECK(config.sizes().tp == 4);
  const StrategyConfig third = std::move(config);
  CHECK(third.sizes().tp == 4);
  one = std::move(taken);
  CHECK(kOwn.read(one).count == 9);
  CHECK(taken.schema().options.empty());  // NOLINT(bugprone-use-after-move): what is promised
}
