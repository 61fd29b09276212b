// Parquet to JSON lines, on Arrow's reader: a batch of rows at a time, by the thread that asks.
#include "sdk/base/unpack/parquet_rows.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <arrow/util/float16.h>
#include <arrow/util/formatting.h>
#include <arrow/util/io_util.h>
#include <fcntl.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/types.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

namespace meshwright::base {

namespace {

using arrow::Array;
using arrow::DataType;
using arrow::Type;
using arrow::internal::checked_cast;

// The first type within one that no row of JSON is made of; nullptr: there is none.
const DataType* unreadable(const DataType& type) {
  switch (type.id()) {
    case Type::NA:
    case Type::BOOL:
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::INT64:
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::UINT64:
    case Type::HALF_FLOAT:
    case Type::FLOAT:
    case Type::DOUBLE:
    case Type::STRING:
    case Type::LARGE_STRING:
    case Type::STRING_VIEW:
    case Type::DATE32:
    case Type::DATE64:
    case Type::TIMESTAMP:
      return nullptr;
    case Type::DICTIONARY:
      return unreadable(*checked_cast<const arrow::DictionaryType&>(type).value_type());
    case Type::EXTENSION:
      return unreadable(*checked_cast<const arrow::ExtensionType&>(type).storage_type());
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::STRUCT:
      for (const auto& field : type.fields())
        if (const DataType* found = unreadable(*field->type())) return found;
      return nullptr;
    default:
      return &type;
  }
}

void put_text(std::string_view text, std::string& out) {
  out += boost::json::serialize(boost::json::string_view(text.data(), text.size()));
}

// Those that JSON does not have are written as Python does, and refused where the row is read.
void put_number(double value, std::string& out) {
  if (std::isnan(value))
    out += "NaN";
  else if (std::isinf(value))
    out += value < 0 ? "-Infinity" : "Infinity";
  else
    out += boost::json::serialize(boost::json::value(value));
}

template <class Numbers>
auto value_of(const Array& array, int64_t row) {
  return checked_cast<const Numbers&>(array).Value(row);
}

// NaN is how pandas writes that there is nothing.
bool is_null(const Array& array, int64_t row) {
  if (array.IsNull(row)) return true;
  if (array.type_id() == Type::DOUBLE) return std::isnan(value_of<arrow::DoubleArray>(array, row));
  if (array.type_id() == Type::FLOAT) return std::isnan(value_of<arrow::FloatArray>(array, row));
  if (array.type_id() == Type::EXTENSION)
    return is_null(*checked_cast<const arrow::ExtensionArray&>(array).storage(), row);
  if (array.type_id() != Type::DICTIONARY) return false;
  const auto& dictionary = checked_cast<const arrow::DictionaryArray&>(array);
  return is_null(*dictionary.dictionary(), dictionary.GetValueIndex(row));
}

// One value as JSON, of a type that unreadable() lets through.
void put(const Array& array, int64_t row, std::string& out);

template <class List>
void put_list(const Array& array, int64_t row, std::string& out) {
  const auto& list = checked_cast<const List&>(array);
  const int64_t begin = list.value_offset(row), end = begin + list.value_length(row);
  out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    put(*list.values(), i, out);
  }
  out += ']';
}

// What is null is left out: every row of a file has all members of all rows, and most rows of chats
// lack the calls that some of them have.
template <class Member>
void put_members(int count, const Member& member, int64_t row, std::string& out) {
  out += '{';
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const auto& [name, array] = member(i);
    if (is_null(*array, row)) continue;
    if (std::exchange(any, true)) out += ',';
    put_text(name, out);
    out += ':';
    put(*array, row, out);
  }
  out += '}';
}

template <class Formatted>
void put_time(const Array& array, int64_t row, std::string& out) {
  using Values = typename arrow::TypeTraits<Formatted>::ArrayType;
  arrow::internal::StringFormatter<Formatted> format(array.type().get());
  out += '"';
  format(checked_cast<const Values&>(array).Value(row), [&](std::string_view text) {
    out += text;
    std::replace(out.end() - std::ssize(text), out.end(), ' ', 'T');
  });
  out += '"';
}

void put(const Array& array, int64_t row, std::string& out) {
  if (array.IsNull(row)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::BOOL:
      out += value_of<arrow::BooleanArray>(array, row) ? "true" : "false";
      return;
    case Type::INT8:
      out += std::to_string(value_of<arrow::Int8Array>(array, row));
      return;
    case Type::INT16:
      out += std::to_string(value_of<arrow::Int16Array>(array, row));
      return;
    case Type::INT32:
      out += std::to_string(value_of<arrow::Int32Array>(array, row));
      return;
    case Type::INT64:
      out += std::to_string(value_of<arrow::Int64Array>(array, row));
      return;
    case Type::UINT8:
      out += std::to_string(value_of<arrow::UInt8Array>(array, row));
      return;
    case Type::UINT16:
      out += std::to_string(value_of<arrow::UInt16Array>(array, row));
      return;
    case Type::UINT32:
      out += std::to_string(value_of<arrow::UInt32Array>(array, row));
      return;
    case Type::UINT64:
      out += std::to_string(value_of<arrow::UInt64Array>(array, row));
      return;
    case Type::HALF_FLOAT:
      put_number(
          arrow::util::Float16::FromBits(value_of<arrow::HalfFloatArray>(array, row)).ToDouble(),
          out);
      return;
    case Type::FLOAT:
      put_number(value_of<arrow::FloatArray>(array, row), out);
      return;
    case Type::DOUBLE:
      put_number(value_of<arrow::DoubleArray>(array, row), out);
      return;
    case Type::STRING:
      put_text(checked_cast<const arrow::StringArray&>(array).GetView(row), out);
      return;
    case Type::LARGE_STRING:
      put_text(checked_cast<const arrow::LargeStringArray&>(array).GetView(row), out);
      return;
    case Type::STRING_VIEW:
      put_text(checked_cast<const arrow::StringViewArray&>(array).GetView(row), out);
      return;
    case Type::DATE32:
      put_time<arrow::Date32Type>(array, row, out);
      return;
    case Type::DATE64:
      put_time<arrow::Date64Type>(array, row, out);
      return;
    case Type::TIMESTAMP:
      put_time<arrow::TimestampType>(array, row, out);
      return;
    case Type::DICTIONARY: {
      const auto& dictionary = checked_cast<const arrow::DictionaryArray&>(array);
      put(*dictionary.dictionary(), dictionary.GetValueIndex(row), out);
      return;
    }
    case Type::EXTENSION:
      put(*checked_cast<const arrow::ExtensionArray&>(array).storage(), row, out);
      return;
    case Type::LIST:
      put_list<arrow::ListArray>(array, row, out);
      return;
    case Type::LARGE_LIST:
      put_list<arrow::LargeListArray>(array, row, out);
      return;
    case Type::FIXED_SIZE_LIST:
      put_list<arrow::FixedSizeListArray>(array, row, out);
      return;
    case Type::STRUCT: {
      const auto& members = checked_cast<const arrow::StructArray&>(array);
      put_members(
          members.num_fields(),
          [&](int i) {
            return std::pair<const std::string&, std::shared_ptr<Array>>(
                array.type()->field(i)->name(), members.field(i));
          },
          row, out);
      return;
    }
    default:
      out += "null";  // NA; others unreadable() has found
  }
}

// What Arrow's reader throws where it has no status, and puts into one as an error of the disk.
constexpr std::string_view kNotYet = "Not yet implemented";

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

class Rows final : public ParquetRows {
 public:
  explicit Rows(const ParquetFile& file) : path_(file.path), code_(file.code) {
    guarded([&] {
      open(file.fd);
      choose(file.columns);
      return true;
    });
  }

  size_t read(std::span<char> out) override {
    size_t done = 0;
    while (done < out.size()) {
      if (at_ == lines_.size() && !guarded([&] { return next_lines(); })) break;
      const size_t some = std::min(out.size() - done, lines_.size() - at_);
      std::memcpy(out.data() + done, lines_.data() + at_, some);
      at_ += some;
      done += some;
    }
    return done;
  }

  int64_t taken() const override {
    return rows_ == 0
               ? size_
               : static_cast<int64_t>(static_cast<double>(size_) * static_cast<double>(read_) /
                                      static_cast<double>(rows_));
  }

 private:
  // Arrow tells by a status, and parts of it by exceptions.
  bool guarded(const std::function<bool()>& work) const {
    try {
      return work();
    } catch (const Error&) {
      throw;
    } catch (const parquet::ParquetStatusException& error) {
      throw of_status(error.status());
    } catch (const std::bad_alloc&) {
      throw no_memory();
    } catch (const std::exception& error) {
      if (std::string_view(error.what()).starts_with(kNotYet)) throw not_read(error.what());
      throw damaged(error.what());
    }
  }
  Error refused(const std::string& what) const {
    return Error(code_, path_ + ": " + what).at({Origin::Source::file, path_, 0, 0});
  }
  std::string place() const {
    return group_ == 0 ? std::string()
                       : ", in row group " + std::to_string(group_) + " of " +
                             std::to_string(reader_->num_row_groups()) + ", behind row " +
                             std::to_string(read_);
  }
  Error damaged(const std::string& why) const {
    return refused("its Parquet data is damaged" + place() + " (" + first_line(why) + ")")
        .help("fetch or write the file again");
  }
  Error no_memory() const {
    return refused("no memory is left to read its Parquet data" + place())
        .help(
            "a page of each column that is read has to fit: free some memory, or write the file "
            "again with smaller pages (in pyarrow's write_table data_page_size and "
            "write_batch_size)");
  }
  Error not_read(const std::string& why) const {
    return refused("its Parquet data is of a kind that is not read" + place() + " (" +
                   first_line(why) + ")")
        .help("write the file again with plain settings, as pyarrow's write_table has them");
  }
  // What is wrong within the data is an error of the disk to Arrow too, but without a number.
  Error of_status(const arrow::Status& status) const {
    if (status.IsOutOfMemory()) return no_memory();
    if (const int number = arrow::internal::ErrnoFromStatus(status); number != 0)
      return refused("cannot be read" + place() + ": " + std::strerror(number))
          .help("see whether the disk or the network behind it is well, and start again");
    if (status.IsNotImplemented() || status.message().starts_with(kNotYet))
      return not_read(status.message());
    return damaged(status.message());
  }
  void check(const arrow::Status& status) const {
    if (!status.ok()) throw of_status(status);
  }
  template <class T>
  T checked(arrow::Result<T> result) const {
    check(result.status());
    return *std::move(result);
  }
  void open(int fd) {
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);  // Arrow closes it
    if (own < 0) throw refused(std::string("cannot be opened: ") + std::strerror(errno));
    arrow::MemoryPool* const pool = arrow::system_memory_pool();
    auto file = checked(arrow::io::ReadableFile::Open(own, pool));
    size_ = checked(file->GetSize());
    parquet::ReaderProperties properties(pool);
    properties.enable_buffered_stream();  // of a column a page, and not all of its row group
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties how(/*use_threads=*/false);
    how.set_pre_buffer(false);
    reader_ = checked(parquet::arrow::FileReader::Make(
        pool, parquet::ParquetFileReader::Open(std::move(file), properties), how));
    rows_ = reader_->parquet_reader()->metadata()->num_rows();
  }

  void choose(const Columns& columns) {
    const auto& fields = reader_->manifest().schema_fields;
    // A column may have dots in its name.
    auto leads_to = [](std::string_view path, std::string_view name) {
      return path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '.');
    };
    for (const Columns::Path& one : columns.paths)
      if (!one.optional && std::none_of(fields.begin(), fields.end(), [&](const auto& field) {
            return leads_to(one.path, field.field->name());
          })) {
        std::string names;
        for (const auto& field : fields) names += (names.empty() ? "" : ", ") + field.field->name();
        throw refused("there is no column \"" + one.path + "\", but these: " + names)
            .key(columns.key)
            .help(columns.help);
      }
    for (const auto& field : fields) {
      const std::string& name = field.field->name();
      if (!columns.paths.empty() &&
          std::none_of(columns.paths.begin(), columns.paths.end(),
                       [&](const Columns::Path& one) { return leads_to(one.path, name); }))
        continue;
      const DataType& type = *field.field->type();
      if (const DataType* found = unreadable(type))
        throw refused("column \"" + name + "\" is of type " + type.ToString() +
                      (found == &type ? ", which" : ", and " + found->ToString()) + " is not read")
            .key(columns.key)
            .help(columns.help)
            .help(
                "strings, numbers, bools, dates, timestamps, and lists and structs of them are "
                "read: write the file again with such a column, or without it");
      if (std::find(names_.begin(), names_.end(), name) != names_.end())
        throw refused("it has two columns of the name \"" + name + "\"")
            .key(columns.key)
            .help("write the file again with another name for one of them");
      names_.push_back(name);
      add_leaves(field);
    }
    if (leaves_.empty()) throw refused("it has no columns").help("fetch or write the file again");
    check_codecs();
  }

  void check_codecs() const {
    const auto all = reader_->parquet_reader()->metadata();
    for (int group = 0; group < all->num_row_groups(); ++group) {
      const auto some = all->RowGroup(group);
      for (const int leaf : leaves_)
        if (const auto codec = some->ColumnChunk(leaf)->compression();
            !parquet::IsCodecSupported(codec) || !arrow::util::Codec::IsAvailable(codec))
          throw refused("its columns are packed by " + arrow::util::Codec::GetCodecAsString(codec) +
                        ", which is not read")
              .help("write the file again with the compression zstd, snappy or gzip");
    }
  }

  void add_leaves(const parquet::arrow::SchemaField& field) {
    if (field.is_leaf()) leaves_.push_back(field.column_index);
    for (const auto& child : field.children) add_leaves(child);
  }

  // Some lines more; false: there are none.
  bool next_lines() {
    if (lines_.capacity() > 2 * kSome) lines_ = {};
    lines_.clear();
    at_ = 0;
    if (row_ == batch_rows_ && !next_batch()) return false;
    put_lines();
    return true;
  }

  bool next_batch() {
    for (;;) {
      if (!batches_ && !next_group()) return false;
      std::shared_ptr<arrow::RecordBatch> batch;
      check(batches_->ReadNext(&batch));
      if (batch && batch->num_rows() > 0) {
        columns_ = batch->columns();
        if (columns_.size() != names_.size()) throw damaged("columns are missing");
        row_ = batch_bytes_ = 0;
        batch_rows_ = batch->num_rows();
        return true;
      }
      if (batch) continue;
      if (read_ != group_end_)
        throw damaged("rows are missing: it should have " + std::to_string(group_end_) +
                      " up to here");
      batches_.reset();
    }
  }

  bool next_group() {
    if (group_ == reader_->num_row_groups()) return false;
    group_end_ = read_ + reader_->parquet_reader()->metadata()->RowGroup(group_)->num_rows();
    reader_->set_batch_size(some_rows_);
    batches_ = checked(reader_->GetRecordBatchReader({group_++}, leaves_));
    return true;
  }

  void put_lines() {
    for (; row_ < batch_rows_ && lines_.size() < kSome; ++row_, ++read_) {
      put_members(
          static_cast<int>(columns_.size()),
          [&](int i) {
            const auto at = static_cast<size_t>(i);
            return std::pair<const std::string&, const std::shared_ptr<Array>&>(names_[at],
                                                                                columns_[at]);
          },
          row_, lines_);
      lines_ += '\n';
    }
    batch_bytes_ += std::ssize(lines_);
    if (row_ < batch_rows_) return;
    // What a file says of its bytes is what they are packed to, of a text that comes a thousand
    // times once: what came out says how many rows are some. Arrow asks for the number each time.
    const int64_t fit = int64_t{kSome} * batch_rows_ / batch_bytes_;
    some_rows_ = std::clamp<int64_t>(fit, 1, std::min(4 * some_rows_, kMostRows));
    reader_->set_batch_size(some_rows_);
    columns_.clear();
  }

  static constexpr size_t kSome = size_t{4} << 20;  // bytes of lines at a time
  static constexpr int64_t kMostRows = 256;         // the next ones may be a thousand times as long

  std::string path_;
  ErrorCode code_;
  int64_t size_ = 0;                // of the file
  int64_t rows_ = 0, read_ = 0;     // in all; those that are lines by now
  int group_ = 0;                   // behind the one that is read
  int64_t group_end_ = 0;           // read_ at its end
  std::vector<std::string> names_;  // of the columns that are read
  std::vector<int> leaves_;         // what they are in the file
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::vector<std::shared_ptr<Array>> columns_;  // of the batch whose rows become lines
  int64_t row_ = 0, batch_rows_ = 0, batch_bytes_ = 0;
  int64_t some_rows_ = 16;  // of the next batch
  std::string lines_;
  size_t at_ = 0;  // what of them was handed out
};

}  // namespace

extern "C" __attribute__((visibility("default"))) ParquetRows* meshwright_open_parquet(
    const ParquetFile& file) {
  return new Rows(file);
}

}  // namespace meshwright::base
