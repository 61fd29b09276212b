// Files of actions: what is read, and every way in which one can be wrong.
#include <optional>

#include "llama_outline.h"
#include "pipeline_cases.h"

namespace pipeline_file_test {

using namespace meshwright;
using namespace meshwright::testing;

namespace {

PipelineLists read(const std::string& text, int64_t size,
                   std::optional<int64_t> micro_batches = std::nullopt) {
  const ActionFile file(text);
  return read_actions(file.path, size, micro_batches);
}

}  // namespace

TEST_CASE("a file of any schedule's rows is read as they were written") {
  for (const PipelineCase& one : pipeline_cases()) {
    if (one.micro_batches % 7 != 3) continue;
    INFO(one.text());
    const PipelineLists lists = one.lists();
    const std::string text = ActionFile::rows(lists);
    REQUIRE(read(text, one.size, one.micro_batches) == lists);
    REQUIRE(read(text, one.size) == lists);
  }
}

TEST_CASE("pauses, spaces and empty lines mean nothing") {
  const PipelineLists lists =
      read(",,0F0 , 0F1,0B0\t,0B1\r\n\n ,, \n 1F0,,(1F1 ; 1B0)OVERLAP_F_B,1B1,,\r\n\n", 2, 2);
  REQUIRE(lists.size() == 2);
  CHECK(actions_row(lists[0]) == "0F0,0F1,0B0,0B1");
  CHECK(actions_row(lists[1]) == "1F0,(1F1;1B0)OVERLAP_F_B,1B1");
}

TEST_CASE("every broken file is refused at its row and column") {
  struct Row {
    const char *name, *text, *message;
  };
  const Row rows[] = {
      {"a word", "0F0,0B0\n1F0,hello,1B0\n", "row 2, column 2 of FILE: \"hello\" is no action"},
      {"another kind", "0F0,0B0\n1F0,1X0\n", "row 2, column 2 of FILE: \"1X0\" is no action"},
      {"no micro-batch", "0F0,0B\n1F0,1B0\n", "row 1, column 2 of FILE: \"0B\" is no action"},
      {"no stage", "F0,0B0\n1F0,1B0\n", "row 1, column 1 of FILE: \"F0\" is no action"},
      {"more behind", "0F0,0B0x\n1F0,1B0\n", "row 1, column 2 of FILE: \"0B0x\" is no action"},
      {"a small letter", "0f0,0B0\n1F0,1B0\n", "row 1, column 1 of FILE: \"0f0\" is no action"},
      {"a pair without an end", "0F0,(0F1;0B0)\n",
       "row 1, column 2 of FILE: \"(0F1;0B0)\" is no pair"},
      {"a pair of one", "0F0,(0F1)OVERLAP_F_B\n", "is no pair of actions"},
      {"a pair of three", "0F0,(0F1;0B0;0B1)OVERLAP_F_B\n", "\"0B0;0B1\" is no action"},
      {"a pair the wrong way round", "0F0,0F1,(0B0;0F2)OVERLAP_F_B\n",
       "row 1, column 3 of FILE: \"(0B0;0F2)OVERLAP_F_B\" is not a forward beside a whole "
       "backward"},
      {"a pair with half a backward", "0F0,(0F1;0I0)OVERLAP_F_B\n",
       "is not a forward beside a whole backward"},
      {"a message", "0F0,0SEND_F0,0B0\n1F0,1B0\n",
       "row 1, column 2 of FILE: \"0SEND_F0\" is a message or a gathering of weights"},
      {"another message", "0F0,0B0\n1RECV_F0,1F0,1B0\n", "row 2, column 1 of FILE"},
      {"a gradient's message", "0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "row 1, column 2 of FILE"},
      {"a gathering of weights", "0UNSHARD,0F0,0B0\n1F0,1B0\n",
       "row 1, column 1 of FILE: \"0UNSHARD\" is a message or a gathering of weights"},
      {"their freeing", "0F0,0B0,0RESHARD\n1F0,1B0\n", "row 1, column 3 of FILE"},
      {"a reduction", "0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", "row 1, column 3 of FILE"},
      {"a stage in two rows", "0F0,0B0\n1F0,1B0,0F1,0B1\n",
       "row 2, column 3 of FILE: stage 0 stands in row 1 too"},
      {"a number beyond the run", "0F0,0F1,0F2,0B0,0B1,0B2\n",
       "row 1, column 3 of FILE: 0F2, but a run has 2 micro-batches"},
      {"a missing forward", "0F0,0B0\n1F0,1F1,1B0,1B1\n",
       "row 1, column 1 of FILE: stage 0 has no 0F1"},
      {"a forward twice", "0F0,0F1,0F0,0B0,0B1\n1F0,1B0\n",
       "row 1, column 3 of FILE: 0F0 stands in column 1 too"},
      {"no backward", "0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n",
       "row 1, column 2 of FILE: 0F1 has no backward"},
      {"a backward twice", "0F0,0F1,0B0,0B0\n1F0,1B0,1F1,1B1\n",
       "row 1, column 4 of FILE: 0B0 stands in column 3 too"},
      {"half a backward", "0F0,0F1,0I0,0B1\n1F0,1B0,1F1,1B1\n",
       "row 1, column 3 of FILE: 0I0 has no 0W0"},
      {"the other half", "0F0,0F1,0W0,0B1\n1F0,1B0,1F1,1B1\n",
       "row 1, column 3 of FILE: 0W0 without 0I0 before it"},
      {"a whole backward beside a half", "0F0,0F1,0I0,0B0\n1F0,1B0\n",
       "row 1, column 4 of FILE: 0B0 beside 0I0 in column 3"},
      {"a half beside a whole backward", "0F0,0F1,0B0,0W0\n1F0,1B0\n",
       "row 1, column 4 of FILE: 0W0 beside 0B0 in column 3"},
      {"a backward before its forward", "0F0,0B1,0F1,0B0\n1F0,1B0\n",
       "row 1, column 2 of FILE: 0B1 without 0F1 before it"},
      {"weights before the input", "0F0,0F1,0W0,0I0\n1F0,1B0\n",
       "row 1, column 3 of FILE: 0W0 without 0I0 before it"},
      {"ranks that wait for each other", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
       "the actions in FILE get stuck: rank 0 (row 1, column 2) waits at 0B0 for 1B0; rank 1 (row "
       "2, column 2) waits at 1F1 for 0F1"},
      {"one row too few", "0F0,0F1,0B0,0B1\n", "FILE has actions for 1 rank, but pp_size is 2"},
      {"one row too many", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n",
       "FILE has actions for 3 ranks, but pp_size is 2"},
      {"nothing", "", "FILE has actions for 0 ranks, but pp_size is 2"},
      {"a stage left out", "0F0,0F1,0B0,0B1\n2F0,2F1,2B0,2B1\n",
       "row 2, column 1 of FILE: stage 2, but the file names 2 stages"},
      {"a stage beyond all", "0F0,99999999999999999999F0\n1F0\n",
       "row 1, column 2 of FILE: it names stage 99999999999999999999"},
      {"a micro-batch beyond all", "0F1000000\n1F0\n",
       "row 1, column 1 of FILE: it names micro-batch 1000000"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const ActionFile file(row.text);
    std::string expected = row.message;
    if (size_t at = expected.find("FILE"); at != std::string::npos)
      expected.replace(at, 4, file.path);
    const Error error =
        refused(ErrorCode::bad_pipeline, expected, [&] { read_actions(file.path, 2, 2); });
    CHECK(error.key() == "distributed.pipeline.pp_schedule_csv");
    CHECK(!error.helps().empty());
  }
  CHECK_NOTHROW(read("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", 2, 2));
}

TEST_CASE("a file that is not there is an unreadable file") {
  for (const std::string& path :
       {std::string("/nowhere/actions.csv"), std::filesystem::temp_directory_path().string()})
    refused(ErrorCode::file_unreadable, path, [&] { read_actions(path, 2); });
}

}  // namespace pipeline_file_test
