#include "coordinator/generate/answer.h"

#include <algorithm>

namespace convoy {

Answer::Answer(const Tokenizer& tokenizer, const GenerationRequest& request, int vocab_size)
    : request_(request),
      max_tokens_(request.max_tokens ? static_cast<size_t>(*request.max_tokens) : SIZE_MAX),
      valid_vocab_(std::min(tokenizer.vocab_size(), vocab_size)),
      stream_(tokenizer, request.stop_strings, request.reasoning) {
  if (request.sampling.changes_logits()) {
    sampler_.emplace(request.sampling, valid_vocab_);
    sampler_->observe_prompt(request.prompt_ids);
    for (const int32_t id : request.continued_ids) sampler_->observe(id);
  }
  stream_.go_on_after(request.continued_ids);
  result_.prompt_tokens = static_cast<int>(request.prompt_ids.size());
}

DrawRule Answer::rule(size_t ahead) const {
  if (sampler_) return {};
  return request_.sampling.rule(request_.continued_ids.size() + tokens() + ahead, valid_vocab_);
}

Result<int32_t> Answer::choose(int32_t engines, std::span<const float> logits) {
  int32_t id = engines;
  if (sampler_) {
    const auto drawn = sampler_->draw(logits, uint64_t{request_.continued_ids.size() + tokens()});
    if (!drawn) return Error{drawn.error()};
    id = drawn.value();
  }
  if (id < 0) return Error{std::string(kEveryTokenMasked)};
  if (request_.top_logprobs)
    result_.logprobs.push_back(token_logprobs(logits, valid_vocab_, id, *request_.top_logprobs));
  return id;
}

bool Answer::ends_at(int32_t id) {
  const auto& stops = request_.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) == stops.end()) return false;
  result_.stop_id = id;
  return true;
}

AnswerPiece Answer::push(int32_t id) {
  result_.token_ids.push_back(id);
  if (sampler_) sampler_->observe(id);
  AnswerPiece piece = add(stream_.push(id));
  if (stopped()) {
    // The stop string may begin before this answer's first token.
    const int kept = stream_.kept_tokens() - static_cast<int>(request_.continued_ids.size());
    result_.token_ids.resize(static_cast<size_t>(std::max(0, kept)));
  }
  return piece;
}

AnswerPiece Answer::finish(FinishReason reason) {
  result_.finish_reason = reason;
  if (request_.top_logprobs) result_.logprobs.resize(tokens());
  return add(stream_.finish());
}

AnswerPiece Answer::add(AnswerPiece piece) {
  (piece.channel == Channel::answer ? result_.text : result_.reasoning) += piece.text;
  return piece;
}

}  // namespace convoy
