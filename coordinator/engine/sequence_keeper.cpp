#include "coordinator/engine/sequence_keeper.h"

#include <algorithm>
#include <utility>

#include "coordinator/engine/step_planner.h"

namespace convoy {
namespace {

int whole_pages(int tokens) {
  return tokens / kPageTokens * kPageTokens;
}

}  // namespace

std::vector<int> image_places(int tokens, const PrefixHit& hit, std::span<const int> turns,
                              int chunk_tokens) {
  std::vector<int> wanted{whole_pages(tokens - 1), whole_pages(tokens), hit.known_tokens};
  for (size_t i = turns.size(); i > 0; --i) wanted.push_back(whole_pages(turns[i - 1]));
  for (int64_t at = chunk_tokens; at < tokens; at *= 2) wanted.push_back(static_cast<int>(at));
  std::vector<int> places;
  for (const int at : wanted) {
    if (at > hit.tokens && at <= tokens &&
        std::find(places.begin(), places.end(), at) == places.end())
      places.push_back(at);
  }
  return places;
}

SequenceKeeper::SequenceKeeper(Engine& engine, Admission& admission, Pipeline* pipeline,
                               PrefixCacheMode mode,
                               std::function<void(const PrefixCacheStats&)> changed)
    : engine_(engine),
      admission_(admission),
      pipeline_(pipeline),
      mode_(mode),
      changed_(std::move(changed)) {
  const StageLimits& limits = engine.limits();
  if (mode != PrefixCacheMode::off && limits.image_slots > 0)
    cache_.emplace(engine.pages(), PrefixCacheLayout{.first_slot = 2 * limits.lanes,
                                                     .slots = limits.image_slots,
                                                     .first_host_slot = limits.state_slots(),
                                                     .host_slots = limits.host_slots,
                                                     .first_host_page = limits.page_groups,
                                                     .host_pages = limits.host_pages});
}

Result<AdmittedSequence> SequenceKeeper::admit(int row, int max_tokens, const KeptPrompt& prompt) {
  // What has ended is free first: the workers would refuse its row and page groups.
  if (Status status = settle(); !status) return Error{status.error()};
  PrefixHit hit;
  if (cache_ && !prompt.ids.empty()) hit = cache_->find(prompt.ids);
  const int needed =
      (max_tokens + kPageTokens - 1) / kPageTokens - static_cast<int>(hit.pages.size());
  if (Status status = make_room(needed); !status) return Error{status.error()};
  auto reserved = admission_.reserve(needed);
  if (!reserved) return Error{reserved.error()};
  AdmittedSequence admitted;
  admitted.request = reserved.value().request;
  admitted.refusal = std::move(reserved.value().refusal);
  if (admitted.refusal) return admitted;
  if (Status status = admission_.admit(admitted.request, row); !status)
    return Error{status.error()};
  admitted.sequence = std::make_unique<Sequence>(engine_.pages(), row, max_tokens,
                                                 std::move(reserved.value().pages));
  if (!cache_ || prompt.ids.empty()) return admitted;
  cache_->count(hit);
  if (hit.tokens > 0) {
    if (Status status = engine_.adopt(*admitted.sequence, hit); !status)
      return Error{status.error()};
  }
  admitted.cached_tokens = hit.tokens;
  admitted.images = choose_images(prompt, hit);
  // Page groups that the cache gave up may be among those that the prompt takes.
  if (Status status = publish_changes(); !status) return Error{status.error()};
  return admitted;
}

// The cache gives up what a request needs, and every stage knows of it before it is asked.
Status SequenceKeeper::make_room(int page_groups) {
  if (!cache_) return {};
  cache_->make_room(page_groups);
  const std::vector<CacheChange> changes = cache_->take_changes();
  if (changes.empty()) return {};
  if (Status status = engine_.apply(changes); !status) return status;
  return pipeline_ == nullptr ? Status() : pipeline_->wait_passed(pipeline_->published());
}

// One prompt takes half of the slots at most, so that it does not push out all others.
std::vector<StateImage> SequenceKeeper::choose_images(const KeptPrompt& prompt,
                                                      const PrefixHit& hit) {
  const auto most = static_cast<size_t>(std::max(1, cache_->slots() / 2));
  std::vector<StateImage> images;
  for (const int tokens : image_places(static_cast<int>(prompt.ids.size()), hit, prompt.turns,
                                       engine_.limits().prefill_chunk_tokens)) {
    if (images.size() == most) break;
    if (cache_->has_image(prompt.ids, tokens)) continue;
    const auto slot = cache_->take_slot();
    if (!slot) break;
    images.push_back({tokens, *slot});
  }
  std::sort(images.begin(), images.end(),
            [](const StateImage& a, const StateImage& b) { return a.tokens < b.tokens; });
  return images;
}

Result<int32_t> SequenceKeeper::prefill(AdmittedSequence& admitted, std::span<const int32_t> ids,
                                        const DrawRule& rule, const std::function<bool()>& stop) {
  Sequence& sequence = *admitted.sequence;
  auto first = engine_.prefill(sequence, ids, admitted.images, rule, stop);
  if (!first || !cache_) return first;
  keep_prompt(admitted, ids.first(static_cast<size_t>(sequence.length())));
  if (Status status = publish_changes(); !status) return Error{status.error()};
  if (mode_ == PrefixCacheMode::fast && first.value() != Engine::kStopped) {
    admitted.boundary_slot = cache_->take_slot().value_or(-1);
    if (admitted.boundary_slot >= 0) sequence.leave_state_at_page_ends(admitted.boundary_slot);
    if (Status status = publish_changes(); !status) return Error{status.error()};
  }
  return first;
}

// `ids`: what was computed of the prompt, which may have been given up before some images.
void SequenceKeeper::keep_prompt(AdmittedSequence& admitted, std::span<const int32_t> ids) {
  auto& images = admitted.images;
  while (!images.empty() && images.back().tokens > static_cast<int>(ids.size())) {
    cache_->give_back(images.back().slot);
    images.pop_back();
  }
  cache_->insert(ids, admitted.sequence->page_groups(), images);
}

Status SequenceKeeper::retire(AdmittedSequence admitted, std::span<const int32_t> ids) {
  if (admitted.boundary_slot >= 0) {
    if (Status status = keep_answer(admitted, ids); !status) return status;
  }
  if (pipeline_ == nullptr) return {};
  PlannedStep step;
  plan_release(*admitted.sequence, step);
  if (Status status = pipeline_->publish(step); !status) return status;
  retired_.push_back({pipeline_->published(), std::move(admitted)});
  return {};
}

// Steps that ran past the end of the answer may have left the state of what is none of it.
Status SequenceKeeper::keep_answer(const AdmittedSequence& admitted, std::span<const int32_t> ids) {
  const StateImage image{admitted.sequence->page_end_tokens(), admitted.boundary_slot};
  if (image.tokens == 0 || image.tokens > static_cast<int>(ids.size())) {
    cache_->give_back(image.slot);
    return {};
  }
  cache_->insert(ids, admitted.sequence->page_groups(), {&image, 1});
  return publish_changes();
}

Status SequenceKeeper::publish_changes() {
  if (changed_) changed_(cache_->stats());
  return engine_.apply(cache_->take_changes());
}

Status SequenceKeeper::settle() {
  while (!retired_.empty()) {
    const Retired& oldest = retired_.front();
    if (Status status = pipeline_->wait_passed(oldest.published); !status) return status;
    if (Status status = admission_.retire(oldest.admitted.request); !status) return status;
    retired_.pop_front();
  }
  return {};
}

}  // namespace convoy
