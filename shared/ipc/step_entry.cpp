#include "shared/ipc/step_entry.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace convoy {
namespace {

constexpr const char* kKindNames[kStepKinds] = {
    "prefill", "decode",     "verify",     "save",       "release",
    "tables",  "keep_pages", "drop_pages", "copy_pages", "copy_states"};

using Problem = std::optional<Error>;

// A field's name, spelt out only for an error: nothing allocates when all is well.
struct Field {
  const char* array;  // null: a field of the header
  int64_t index;
  const char* name;
  Field(const char* header_field)
      : array(nullptr), index(0), name(header_field) {}  // NOLINT(google-explicit-constructor)
  Field(const char* of, int64_t at, const char* field) : array(of), index(at), name(field) {}
  std::string text() const {
    if (array == nullptr) return name;
    return std::string(array) + "[" + std::to_string(index) + "]." + name;
  }
};

Error wrong(const std::string& field, int64_t value, const std::string& allowed) {
  return Error{field + " is " + std::to_string(value) + ", allowed: " + allowed};
}

Problem expect_equal(const Field& field, int64_t value, int64_t expected) {
  if (value == expected) return std::nullopt;
  return wrong(field.text(), value, std::to_string(expected));
}

Problem expect_range(const Field& field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return std::nullopt;
  return wrong(field.text(), value, std::to_string(least) + ".." + std::to_string(most));
}

// The first problem of a list.
template <typename... Problems>
Problem first_of(Problems... problems) {
  Problem found;
  ((found.has_value() ? void() : void(found = std::move(problems))), ...);
  return found;
}

Problem check_header(const StepHeader& header, const StepExpectation& expected) {
  Problem problem = first_of(
      expect_equal("epoch", header.epoch, expected.epoch),
      expect_equal("sequence", header.sequence, expected.sequence),
      expect_range("kind", static_cast<uint32_t>(header.kind), 0, kStepKinds - 1),
      expect_range("position_class", static_cast<uint32_t>(header.position_class), 0, 1),
      expect_range("lanes", header.lanes, step_runs_layers(header.kind) ? 1 : 0, kMaxLanes),
      expect_range("width", header.width, step_runs_layers(header.kind) ? 1 : 0,
                   expected.max_columns),
      expect_range("delta_count", header.delta_count, 0, expected.max_deltas),
      expect_equal("flags", header.flags & ~kStepKnownFlags, 0));
  if (problem) return problem;
  problem =
      expect_range("lanes * width", int64_t{header.lanes} * header.width, 0, expected.max_columns);
  for (int i = 0; i < 5 && !problem; ++i) {
    if (header.reserved[i] != 0) {
      problem = wrong("reserved[" + std::to_string(i) + "]", header.reserved[i], "0");
    }
  }
  return problem;
}

Problem check_lane(const StepLane& lane, int64_t index, const StepHeader& header,
                   const StepLimits& limits) {
  const auto name = [index](const char* field) { return Field("lanes", index, field); };
  return first_of(expect_range(name("kv_row"), lane.kv_row, 0, limits.kv_rows - 1),
                  expect_range(name("valid_columns"), lane.valid_columns, 0, header.width),
                  expect_range(name("cache_position"), lane.cache_position, 0,
                               int64_t{limits.positions} - std::max(lane.valid_columns, 1)),
                  expect_range(name("state_source"), lane.state_source, -1, limits.state_slots - 1),
                  expect_range(name("state_destination"), lane.state_destination,
                               lane.valid_columns > 0 ? 0 : -1, limits.state_slots - 1),
                  expect_range(name("pending_fold"), lane.pending_fold, -1,
                               std::numeric_limits<int32_t>::max()),
                  expect_range(name("record_buffer"), lane.record_buffer, 0, 1),
                  expect_equal(name("reserved"), lane.reserved, 0));
}

Problem check_delta(const BlockTableDelta& delta, int64_t index, StepKind kind,
                    const StepLimits& limits) {
  const auto name = [index](const char* field) { return Field("deltas", index, field); };
  if (kind == StepKind::copy_pages || kind == StepKind::copy_states) {
    const int64_t last =
        (kind == StepKind::copy_pages ? int64_t{limits.pages} + limits.host_pages
                                      : int64_t{limits.state_slots} + limits.host_slots) -
        1;
    return first_of(expect_equal(name("kv_row"), delta.kv_row, 0),
                    expect_range(name("block"), delta.block, 0, last),
                    expect_range(name("page"), delta.page, 0, last));
  }
  return first_of(expect_range(name("kv_row"), delta.kv_row, 0, limits.kv_rows - 1),
                  expect_range(name("block"), delta.block, 0, limits.blocks_per_row - 1),
                  expect_range(name("page"), delta.page, 0, limits.pages - 1));
}

// A column repeats its lane; a live one has the next position.
Problem check_column(const ControlRow& row, int64_t index, const StepLane& lane, int32_t in_lane) {
  const auto name = [index](const char* field) { return Field("control", index, field); };
  Problem problem = first_of(
      expect_equal(name("kv_row"), row.kv_row, lane.kv_row),
      expect_equal(name("valid_columns"), row.valid_columns, lane.valid_columns),
      expect_equal(name("state_source"), row.state_source, lane.state_source),
      expect_equal(name("state_destination"), row.state_destination, lane.state_destination));
  if (problem || in_lane >= lane.valid_columns) return problem;
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  return first_of(
      expect_equal(name("cache_position"), row.cache_position, lane.cache_position + in_lane),
      expect_range(name("rope_position[0]"), row.rope_position[0], 0, kMost),
      expect_range(name("rope_position[1]"), row.rope_position[1], 0, kMost),
      expect_range(name("rope_position[2]"), row.rope_position[2], 0, kMost));
}

Problem find_problem(const ConstStepEntry& entry, const StepExpectation& expected) {
  // A copy: the counts that bound the loops stay what was checked.
  const StepHeader header = *entry.header;
  Problem problem = check_header(header, expected);
  for (uint32_t i = 0; i < header.delta_count && !problem; ++i) {
    problem = check_delta(entry.deltas[i], i, header.kind, expected.limits);
  }
  for (uint32_t i = 0; i < header.lanes && !problem; ++i) {
    const StepLane lane = entry.lanes[i];
    problem = check_lane(lane, i, header, expected.limits);
    for (uint32_t j = 0; j < header.width && !problem; ++j) {
      const int64_t column = int64_t{i} * header.width + j;
      problem = check_column(entry.control[column], column, lane, static_cast<int32_t>(j));
    }
  }
  return problem;
}

}  // namespace

const char* step_kind_name(StepKind kind) {
  const auto index = static_cast<uint32_t>(kind);
  return index < kStepKinds ? kKindNames[index] : "unknown";
}

Status check_step(const ConstStepEntry& entry, const StepExpectation& expected) {
  if (Problem problem = find_problem(entry, expected)) {
    return Error{"step " + std::to_string(expected.sequence) + ": " + problem->message};
  }
  return {};
}

}  // namespace convoy
