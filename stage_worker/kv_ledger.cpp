#include "stage_worker/kv_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convoy {

KvLedger::KvLedger(uint64_t incarnation, int page_groups, int rows)
    : incarnation_(incarnation),
      owners_(static_cast<size_t>(page_groups), 0),
      kept_(static_cast<size_t>(page_groups), false),
      by_row_(static_cast<size_t>(rows)) {}

proto::AdmissionAnswer KvLedger::handle(const proto::AdmissionCommand& command) {
  const std::lock_guard lock(mutex_);
  proto::AdmissionAnswer answer;
  answer.set_incarnation(incarnation_);
  answer.set_sequence(command.sequence());
  answer.set_command_incarnation(command.incarnation());
  if (command.incarnation() != incarnation_) {
    answer.set_rejected(fmt::format("command {} is for incarnation {}, this is {}",
                                    command.sequence(), command.incarnation(), incarnation_));
    return answer;
  }
  if (command.sequence() == last_sequence_ && last_sequence_ != 0) return last_answer_;
  if (command.sequence() < last_sequence_) {
    answer.set_applied(true);
    return answer;
  }
  if (command.sequence() != last_sequence_ + 1) {
    answer.set_rejected(
        fmt::format("command {} came after {}", command.sequence(), last_sequence_));
    return answer;
  }
  Problem problem;
  answer.set_applied(true);
  switch (command.body_case()) {
    case proto::AdmissionCommand::kReserve:
      problem = reserve(command.reserve(), answer);
      break;
    case proto::AdmissionCommand::kAdmit:
      problem = admit(command.admit());
      break;
    case proto::AdmissionCommand::kRetire:
      problem = retire(command.retire());
      break;
    case proto::AdmissionCommand::BODY_NOT_SET:
      problem = "the command is empty";
  }
  check_sum();
  if (problem) {
    answer.set_rejected(*problem);
    return answer;
  }
  last_sequence_ = command.sequence();
  last_answer_ = answer;
  return answer;
}

KvLedger::Problem KvLedger::reserve(const proto::Reserve& command, proto::AdmissionAnswer& answer) {
  if (requests_.contains(command.request()))
    return fmt::format("request {} has its page groups already", command.request());
  if (command.page_groups() > static_cast<uint32_t>(free_now())) {
    answer.mutable_refused()->set_needed(command.page_groups());
    answer.mutable_refused()->set_available(static_cast<uint32_t>(free_now()));
    return std::nullopt;
  }
  const int count = static_cast<int>(command.page_groups());
  requests_[command.request()].promised = count;
  reserved_ += count;
  return std::nullopt;
}

KvLedger::Problem KvLedger::admit(const proto::Admit& command) {
  const auto found = requests_.find(command.request());
  if (found == requests_.end())
    return fmt::format("request {} was promised nothing", command.request());
  if (found->second.row >= 0)
    return fmt::format("request {} runs in row {} already", command.request(), found->second.row);
  if (command.row() >= by_row_.size())
    return fmt::format("row {} of {}", command.row(), by_row_.size());
  auto& owner = by_row_[command.row()];
  if (owner) return fmt::format("row {} is request {}'s", command.row(), *owner);
  owner = command.request();
  found->second.row = static_cast<int>(command.row());
  return std::nullopt;
}

KvLedger::Problem KvLedger::retire(const proto::Retire& command) {
  const auto found = requests_.find(command.request());
  if (found == requests_.end()) return fmt::format("request {} is unknown", command.request());
  const Request& request = found->second;
  if (request.row >= 0 && !request.released)
    return fmt::format("request {} still runs in row {}", command.request(), request.row);
  reserved_ -= request.promised;
  requests_.erase(found);
  return std::nullopt;
}

Status KvLedger::apply(const ConstStepEntry& entry) {
  const std::lock_guard lock(mutex_);
  const StepHeader& header = *entry.header;
  for (uint32_t i = 0; i < header.delta_count; ++i) {
    const BlockTableDelta delta = entry.deltas[i];
    if (Status status = apply(header.kind, delta); !status) return status;
  }
  for (uint32_t i = 0; i < header.lanes; ++i) {
    const int row = entry.lanes[i].kv_row;
    if (row < 0 || row >= static_cast<int>(by_row_.size()) || !by_row_[static_cast<size_t>(row)])
      return Error{fmt::format("a {} step names row {}, which no request has",
                               step_kind_name(header.kind), row)};
    if (header.kind == StepKind::release) release_row(row);
  }
  check_sum();
  return {};
}

Status KvLedger::apply(StepKind kind, const BlockTableDelta& delta) {
  switch (kind) {
    case StepKind::keep_pages:
      return keep(delta.page);
    case StepKind::drop_pages:
      return drop(delta.page);
    case StepKind::copy_pages:
    case StepKind::copy_states:
      return {};  // nothing changes hands
    default:
      return take(delta, kind == StepKind::tables);
  }
}

Status KvLedger::take(const BlockTableDelta& delta, bool may_share) {
  if (delta.kv_row < 0 || delta.kv_row >= static_cast<int>(by_row_.size()) ||
      !by_row_[static_cast<size_t>(delta.kv_row)])
    return Error{
        fmt::format("page group {} for row {}, which no request has", delta.page, delta.kv_row)};
  if (delta.page < 0 || delta.page >= capacity())
    return Error{fmt::format("page group {} of {}", delta.page, capacity())};
  const uint64_t id = *by_row_[static_cast<size_t>(delta.kv_row)];
  Request& request = requests_.at(id);
  int& owners = owners_[static_cast<size_t>(delta.page)];
  if (owners > 0 && !may_share)
    return Error{fmt::format("page group {} for request {} is in use", delta.page, id)};
  if (owners == 0) {
    if (request.promised == 0)
      return Error{
          fmt::format("page group {} is more than request {} was promised", delta.page, id)};
    --request.promised;
    --reserved_;
    ++used_;
  }
  ++owners;
  request.pages.push_back(delta.page);
  return {};
}

Status KvLedger::keep(int32_t page) {
  const auto at = static_cast<size_t>(page);
  if (page < 0 || page >= capacity() || kept_[at] || (owners_[at] == 0 && free_now() == 0))
    return Error{fmt::format("page group {} cannot be kept", page)};
  kept_[at] = true;
  if (owners_[at]++ == 0) ++used_;
  return {};
}

Status KvLedger::drop(int32_t page) {
  const auto at = static_cast<size_t>(page);
  if (page < 0 || page >= capacity() || !kept_[at])
    return Error{fmt::format("page group {} was not kept", page)};
  kept_[at] = false;
  if (--owners_[at] == 0) --used_;
  return {};
}

void KvLedger::release_row(int row) {
  auto& owner = by_row_[static_cast<size_t>(row)];
  Request& request = requests_.at(*owner);
  for (const int32_t page : request.pages) {
    if (--owners_[static_cast<size_t>(page)] == 0) --used_;
  }
  request.pages.clear();
  reserved_ -= std::exchange(request.promised, 0);
  request.released = true;
  owner.reset();
}

int KvLedger::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

int KvLedger::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

int KvLedger::free() const {
  const std::lock_guard lock(mutex_);
  return free_now();
}

void KvLedger::check_sum() const {
  int promised = 0;
  for (const auto& [id, request] : requests_) promised += request.promised;
  CONVOY_CHECK_OP(promised, ==, reserved_);
  CONVOY_CHECK(used_ >= 0 && reserved_ >= 0 && free_now() >= 0,
               fmt::format("{} used, {} reserved, {} free of {} page groups", used_, reserved_,
                           free_now(), capacity()));
}

}  // namespace convoy
