#include "coordinator/engine/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace convoy {

const proto::AdmissionCommand& AdmissionSender::begin(proto::AdmissionCommand command) {
  CONVOY_CHECK(!pending_, fmt::format("command {} has no answer yet", sequence_));
  command.set_incarnation(incarnation_);
  command.set_sequence(++sequence_);
  return pending_.emplace(std::move(command));
}

bool AdmissionSender::take(const proto::AdmissionAnswer& answer) {
  if (!pending_ || answer.incarnation() != incarnation_ ||
      answer.command_incarnation() != incarnation_ || answer.sequence() != sequence_)
    return false;
  pending_.reset();
  return true;
}

void AdmissionSender::restart(uint64_t incarnation) {
  incarnation_ = incarnation;
  sequence_ = 0;
  pending_.reset();
}

std::string AdmissionRefusal::message() const {
  return fmt::format("stage {} ({}) has {} page groups free, {} are needed", rank, device,
                     available, needed);
}

Admission::Admission(PagePool& pool, std::vector<Stage> stages, Exchange exchange)
    : pool_(pool), stages_(std::move(stages)), exchange_(std::move(exchange)) {
  for (size_t rank = 1; rank < stages_.size(); ++rank)
    senders_.emplace_back(stages_[rank].incarnation);
}

Result<Admission::Reserved> Admission::reserve(int page_groups) {
  Reserved result;
  result.request = ++requests_;
  auto own = pool_.reserve(page_groups);
  if (!own) {
    result.refusal = AdmissionRefusal{.rank = 0,
                                      .device = stages_.front().device,
                                      .needed = page_groups,
                                      .available = pool_.free()};
    return result;
  }
  proto::AdmissionCommand command;
  command.mutable_reserve()->set_request(result.request);
  command.mutable_reserve()->set_page_groups(static_cast<uint32_t>(page_groups));
  const auto answers = tell(command, everyone());
  if (!answers) return Error{answers.error()};
  std::vector<bool> granted(senders_.size());
  for (size_t i = 0; i < senders_.size(); ++i) {
    const proto::AdmissionAnswer& answer = answers.value()[i];
    granted[i] = !answer.has_refused();
    const int available = static_cast<int>(answer.refused().available());
    if (granted[i] || (result.refusal && result.refusal->available <= available)) continue;
    const Stage& stage = stages_[i + 1];
    result.refusal = AdmissionRefusal{
        .rank = stage.rank, .device = stage.device, .needed = page_groups, .available = available};
  }
  if (!result.refusal) {
    result.pages = std::move(*own);
    return result;
  }
  // All or nothing: those that have promised take it back.
  command.mutable_retire()->set_request(result.request);
  if (const auto told = tell(command, granted); !told) return Error{told.error()};
  return result;
}

Status Admission::admit(uint64_t request, int row) {
  proto::AdmissionCommand command;
  command.mutable_admit()->set_request(request);
  command.mutable_admit()->set_row(static_cast<uint32_t>(row));
  return tell_all(command);
}

Status Admission::retire(uint64_t request) {
  proto::AdmissionCommand command;
  command.mutable_retire()->set_request(request);
  return tell_all(command);
}

Status Admission::tell_all(const proto::AdmissionCommand& command) {
  const auto answers = tell(command, everyone());
  return answers ? Status() : Status(Error{answers.error()});
}

Result<Admission::Answers> Admission::tell(const proto::AdmissionCommand& command,
                                           const std::vector<bool>& wanted) {
  for (const AdmissionSender& sender : senders_) {
    if (sender.pending() != nullptr)
      return Error{fmt::format("admission command {} has no answer", sender.pending()->sequence())};
  }
  std::vector<const proto::AdmissionCommand*> commands(senders_.size(), nullptr);
  for (size_t i = 0; i < senders_.size(); ++i) {
    if (wanted[i]) commands[i] = &senders_[i].begin(command);
  }
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end())
    return Answers(senders_.size());
  auto answers = exchange_(commands);
  if (!answers) return answers;
  for (size_t i = 0; i < senders_.size(); ++i) {
    if (!wanted[i]) continue;
    const proto::AdmissionAnswer& answer = answers.value()[i];
    if (!senders_[i].take(answer) || answer.has_rejected()) {
      return Error{
          fmt::format("stage {} ({}) did not accept admission command {}: {}", stages_[i + 1].rank,
                      stages_[i + 1].device, answer.sequence(),
                      answer.has_rejected() ? answer.rejected() : "it answered another command")};
    }
  }
  return answers;
}

}  // namespace convoy
