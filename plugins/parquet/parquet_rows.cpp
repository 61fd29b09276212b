#include "parquet_rows.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>

#include <boost/json/serialize.hpp>
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <string_view>

#include "meshwright/error.h"
#include "sdk/base/files/utf8.h"

namespace meshwright::parquet_rows {

namespace {

constexpr int64_t kBatchRows = 1024;
constexpr int kDeepest = 32;  // lists in lists, structs in structs

// What has no counterpart in JSON: the column's path and why.
struct Unreadable {
  std::string column, what;
};

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  void row(const arrow::RecordBatch& batch, int64_t row) {
    out_ += '{';
    for (int i = 0; i < batch.num_columns(); ++i) {
      if (i > 0) out_ += ',';
      path_ = batch.column_name(i);
      text(path_);
      out_ += ':';
      value(*batch.column(i), row, 0);
    }
    out_ += "}\n";
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw Unreadable{path_, what}; }

  void text(std::string_view bytes) {
    if (base::first_invalid(bytes) < bytes.size()) refuse("is not UTF-8");
    out_ += boost::json::serialize(boost::json::string_view(bytes.data(), bytes.size()));
  }

  template <class Array>
  void number(const arrow::Array& array, int64_t at) {
    const auto value = static_cast<const Array&>(array).Value(at);
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      // JSON has no word for them, and no row means them.
      if (!std::isfinite(value)) return void(out_ += "null");
      out_ += boost::json::serialize(boost::json::value(static_cast<double>(value)));
    } else {
      out_ += std::to_string(value);
    }
  }

  template <class Array>
  void string(const arrow::Array& array, int64_t at) {
    text(static_cast<const Array&>(array).GetView(at));
  }

  template <class Array>
  void list(const arrow::Array& array, int64_t at, int depth) {
    const auto& lists = static_cast<const Array&>(array);
    out_ += '[';
    for (int64_t i = 0; i < lists.value_length(at); ++i) {
      if (i > 0) out_ += ',';
      value(*lists.values(), lists.value_offset(at) + i, depth + 1);
    }
    out_ += ']';
  }

  void structure(const arrow::StructArray& array, int64_t at, int depth) {
    const std::string outside = path_;
    out_ += '{';
    for (int i = 0; i < array.num_fields(); ++i) {
      if (i > 0) out_ += ',';
      const std::string& name = array.type()->field(i)->name();
      text(name);
      out_ += ':';
      path_ = outside + "." + name;
      value(*array.field(i), at, depth + 1);
    }
    path_ = outside;
    out_ += '}';
  }

  void map(const arrow::MapArray& array, int64_t at, int depth) {
    if (!arrow::is_string(array.keys()->type_id())) refuse("is a map whose keys are no strings");
    out_ += '{';
    for (int64_t i = 0; i < array.value_length(at); ++i) {
      if (i > 0) out_ += ',';
      value(*array.keys(), array.value_offset(at) + i, depth + 1);
      out_ += ':';
      value(*array.items(), array.value_offset(at) + i, depth + 1);
    }
    out_ += '}';
  }

  void value(const arrow::Array& array, int64_t at, int depth) {
    if (depth > kDeepest) refuse("is nested more than 32 times");
    if (array.IsNull(at)) return void(out_ += "null");
    using Type = arrow::Type;
    switch (array.type_id()) {
      case Type::BOOL:
        return void(out_ += static_cast<const arrow::BooleanArray&>(array).Value(at) ? "true"
                                                                                     : "false");
      case Type::INT8:
        return number<arrow::Int8Array>(array, at);
      case Type::INT16:
        return number<arrow::Int16Array>(array, at);
      case Type::INT32:
        return number<arrow::Int32Array>(array, at);
      case Type::INT64:
        return number<arrow::Int64Array>(array, at);
      case Type::UINT8:
        return number<arrow::UInt8Array>(array, at);
      case Type::UINT16:
        return number<arrow::UInt16Array>(array, at);
      case Type::UINT32:
        return number<arrow::UInt32Array>(array, at);
      case Type::UINT64:
        return number<arrow::UInt64Array>(array, at);
      case Type::FLOAT:
        return number<arrow::FloatArray>(array, at);
      case Type::DOUBLE:
        return number<arrow::DoubleArray>(array, at);
      case Type::STRING:
        return string<arrow::StringArray>(array, at);
      case Type::LARGE_STRING:
        return string<arrow::LargeStringArray>(array, at);
      case Type::STRING_VIEW:
        return string<arrow::StringViewArray>(array, at);
      case Type::BINARY:  // what old writers call their strings
        return string<arrow::BinaryArray>(array, at);
      case Type::LIST:
        return list<arrow::ListArray>(array, at, depth);
      case Type::LARGE_LIST:
        return list<arrow::LargeListArray>(array, at, depth);
      case Type::FIXED_SIZE_LIST:
        return list<arrow::FixedSizeListArray>(array, at, depth);
      case Type::STRUCT:
        return structure(static_cast<const arrow::StructArray&>(array), at, depth);
      case Type::MAP:
        return map(static_cast<const arrow::MapArray&>(array), at, depth);
      case Type::DICTIONARY: {
        const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
        return value(*coded.dictionary(), coded.GetValueIndex(at), depth + 1);
      }
      case Type::DATE32:
      case Type::DATE64:
      case Type::TIMESTAMP:
      case Type::TIME32:
      case Type::TIME64:
      case Type::DECIMAL128:
      case Type::DECIMAL256: {
        const auto scalar = array.GetScalar(at);
        if (!scalar.ok()) refuse(scalar.status().message());
        return text((*scalar)->ToString());
      }
      default:
        refuse("is of the type " + array.type()->ToString() + ", for which JSON has nothing");
    }
  }

  std::string& out_;
  std::string path_;
};

}  // namespace

struct ParquetRows::Open {
  std::string path;
  std::unique_ptr<parquet::arrow::FileReader> file;
  std::unique_ptr<arrow::RecordBatchReader> batches;
  int64_t rows = 0, read = 0;

  Error damaged(const std::string& what) const {
    return Error(ErrorCode::bad_dataset,
                 path + ":" + std::to_string(read + 1) + ": the Parquet file is damaged: " + what);
  }
  template <class T>
  T taken(arrow::Result<T> result) const {
    if (!result.ok()) throw damaged(result.status().message());
    return std::move(result).ValueUnsafe();
  }
};

ParquetRows::ParquetRows(const std::string& path, const std::vector<std::string>& columns)
    : open_(std::make_unique<Open>()) {
  open_->path = path;
  try {
    auto input = arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ);
    if (!input.ok())
      throw Error(ErrorCode::bad_dataset,
                  path + ": cannot be read: " + input.status().message());
    auto file = parquet::arrow::OpenFile(*input, arrow::default_memory_pool());
    if (!file.ok())
      throw Error(ErrorCode::bad_dataset,
                  path + ": is no Parquet file, or a damaged one: " + file.status().message())
          .help("write it again: pandas.DataFrame.to_parquet, datasets.Dataset.to_parquet");
    open_->file = std::move(*file);
    open_->file->set_batch_size(kBatchRows);
    open_->rows = open_->file->parquet_reader()->metadata()->num_rows();
    std::shared_ptr<arrow::Schema> schema;
    if (const arrow::Status status = open_->file->GetSchema(&schema); !status.ok())
      throw open_->damaged(status.message());
    std::vector<int> leaves;
    const auto& described = *open_->file->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < described.num_columns(); ++leaf) {
      const std::string top = described.GetColumnRoot(leaf)->name();
      if (columns.empty() || std::find(columns.begin(), columns.end(), top) != columns.end())
        leaves.push_back(leaf);
    }
    std::vector<int> groups(static_cast<size_t>(open_->file->num_row_groups()));
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    open_->batches = open_->taken(open_->file->GetRecordBatchReader(groups, leaves));
  } catch (const parquet::ParquetException& error) {
    throw open_->damaged(error.what());
  }
}

ParquetRows::~ParquetRows() = default;

int64_t ParquetRows::rows() const { return open_->rows; }

std::optional<std::string> ParquetRows::next() {
  try {
    const std::shared_ptr<arrow::RecordBatch> batch = open_->taken(open_->batches->Next());
    if (!batch) {
      if (open_->read != open_->rows)
        throw open_->damaged("it has " + std::to_string(open_->read) + " rows, and names " +
                             std::to_string(open_->rows));
      return std::nullopt;
    }
    // Offsets into a file that is damaged may lie anywhere.
    if (const arrow::Status status = batch->ValidateFull(); !status.ok())
      throw open_->damaged(status.message());
    std::string out;
    JsonWriter json(out);
    for (int64_t row = 0; row < batch->num_rows(); ++row) {
      json.row(*batch, row);
      ++open_->read;
    }
    return out;
  } catch (const parquet::ParquetException& error) {
    throw open_->damaged(error.what());
  } catch (const Unreadable& error) {
    throw Error(ErrorCode::bad_dataset, open_->path + ":" + std::to_string(open_->read + 1) +
                                            ": the column \"" + error.column + "\" " + error.what)
        .help("leave the column out: name those that are read in fields, or drop it where the "
              "file is written");
  }
}

}  // namespace meshwright::parquet_rows
