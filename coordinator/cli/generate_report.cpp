#include "coordinator/cli/generate_report.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "base/exit_code.h"
#include "coordinator/console/table.h"
#include "coordinator/version.h"

namespace convoy {
namespace {

namespace json = boost::json;

// JSON has no infinity, which bans or forces a token: it is written as --logit-bias reads it.
json::value number_or_word(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// The options in force; a greedy choice depends on nothing but bias and penalties.
json::object sampling_json(const SamplingOptions& o) {
  json::object object{{"greedy", o.is_greedy()}};
  if (!o.is_greedy()) {
    object["temperature"] = o.temperature;
    object["top_k"] = o.top_k;
    object["top_p"] = o.top_p;
    object["min_p"] = o.min_p;
    object["seed"] = o.seed;
  }
  object["presence_penalty"] = o.presence_penalty;
  object["frequency_penalty"] = o.frequency_penalty;
  object["repetition_penalty"] = o.repetition_penalty;
  json::object bias;
  for (const auto& [id, value] : o.logit_bias) bias[std::to_string(id)] = number_or_word(value);
  object["logit_bias"] = bias;
  return object;
}

// JSON has no infinity: a masked token's log-probability is null.
json::value number_or_null(float value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}

json::array logprobs_json(const std::vector<LogprobReport>& reports) {
  json::array list;
  for (const LogprobReport& report : reports) {
    json::array top;
    for (const TokenLogprob& t : report.top)
      top.push_back({{"id", t.id}, {"logprob", number_or_null(t.logprob)}});
    list.push_back(
        {{"id", report.drawn.id}, {"logprob", number_or_null(report.drawn.logprob)}, {"top", top}});
  }
  return list;
}

double per_second(int count, double seconds) {
  return seconds > 0 ? count / seconds : 0;
}

// What a single answer and a line of a batch have in common.
json::object answer_json(const GenerationResult& result, const GenerationRequest& request,
                         const RunOptions& options) {
  json::object object{
      {"schema", 1},
      {"version", kVersion},
      {"model", options.model_directory.native()},
      {"text", result.text},
      {"reasoning", result.reasoning},
      {"token_ids", json::array(result.token_ids.begin(), result.token_ids.end())},
      {"prompt_tokens", result.prompt_tokens},
      {"cached_tokens", result.cached_tokens},
      {"completion_tokens", result.token_ids.size()},
      {"finish_reason", finish_reason_name(result.finish_reason)},
      {"stop_id", result.stop_id ? json::value(*result.stop_id) : json::value(nullptr)},
      {"sampling", sampling_json(request.sampling)}};
  if (request.top_logprobs) object["logprobs"] = logprobs_json(result.logprobs);
  return object;
}

// Nothing where nothing was kept.
std::string cache_line(const proto::PrefixCacheHealth& cache) {
  if (cache.hits() + cache.prefixes() == 0) return "";
  return fmt::format(
      "prefix cache: {} of {} prompts hit, {} tokens; {} prefixes in {}, {} gave way{}\n",
      cache.hits(), cache.lookups(), cache.hit_tokens(), cache.prefixes(),
      format_bytes(cache.bytes()), cache.evictions(),
      cache.host_prefixes() == 0
          ? ""
          : fmt::format("; {} in {} of host memory, {} came back", cache.host_prefixes(),
                        format_bytes(cache.host_bytes()), cache.restored()));
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-";
}

std::string stage_table(const std::vector<StageReport>& stages, KvDtype kv_dtype, double seconds) {
  std::vector<std::vector<std::string>> rows{
      {"stage", "pid", "device", "layers", "weights", "kv", "busy", "waiting"}};
  for (const StageReport& s : stages) {
    rows.push_back({std::to_string(s.rank), std::to_string(s.pid), s.device,
                    fmt::format("{}-{}", s.layers.begin, s.layers.end - 1),
                    format_bytes(s.weight_bytes), format_kv(s.kv_bytes, kv_dtype_name(kv_dtype)),
                    percent(s.busy_s, seconds), percent(s.wait_s, seconds)});
  }
  return format_table(rows, {2});
}

// With it a text can be had again.
std::string seed_text(const SamplingOptions& sampling) {
  return sampling.is_greedy() ? "" : fmt::format("; seed {}", sampling.seed);
}

}  // namespace

std::string generation_json(const GenerationResult& result, const GenerationRequest& request,
                            const EngineRun& run, const std::vector<StageReport>& stages,
                            const RunOptions& options) {
  json::array stage_list;
  for (const StageReport& s : stages) {
    stage_list.push_back({{"rank", s.rank},
                          {"pid", s.pid},
                          {"device", s.device},
                          {"layers", {s.layers.begin, s.layers.end}},
                          {"weight_bytes", s.weight_bytes},
                          {"kv_bytes", s.kv_bytes},
                          {"busy_s", s.busy_s},
                          {"wait_s", s.wait_s}});
  }
  json::object object = answer_json(result, request, options);
  object["timings"] = {{"load_s", run.load_seconds()},
                       {"prefill_s", result.prefill_s},
                       {"decode_s", result.decode_s},
                       {"prefill_tok_s", per_second(result.prompt_tokens, result.prefill_s)},
                       {"decode_tok_s", per_second(result.decode_steps, result.decode_s)}};
  object["kv_dtype"] = kv_dtype_name(run.plan().limits.kv_dtype);
  object["stages"] = stage_list;
  if (request.pace_tokens_per_s > 0) object["pace_tok_s"] = request.pace_tokens_per_s;
  return json::serialize(object);
}

std::string generation_summary(const GenerationResult& result, const GenerationRequest& request,
                               const EngineRun& run, const std::vector<StageReport>& stages) {
  const double pace = request.pace_tokens_per_s;
  std::string text = fmt::format(
      "\nprompt: {} tokens, {:.1f} tok/s; answer: {} tokens, {:.1f} tok/s{}; {}{}; loaded in "
      "{:.2f} "
      "s\n",
      result.prompt_tokens, per_second(result.prompt_tokens, result.prefill_s),
      result.token_ids.size(), per_second(result.decode_steps, result.decode_s),
      pace > 0 ? fmt::format(" (paced at {} tok/s)", pace) : "",
      finish_reason_name(result.finish_reason), seed_text(request.sampling), run.load_seconds());
  return text + cache_line(run.cache_health()) +
         stage_table(stages, run.plan().limits.kv_dtype, result.prefill_s + result.decode_s);
}

std::string batch_answer_json(size_t line, const BatchAnswer& answer, const BatchPrompt& prompt,
                              const RunOptions& options) {
  if (!answer.refusal.empty()) {
    return json::serialize(json::object{
        {"line", line},
        {"error",
         {{"code", exit_code_name(ExitCode::request_refused)}, {"message", answer.refusal}}}});
  }
  json::object object;
  object["line"] = line;
  for (const auto& [key, value] : answer_json(answer.result, prompt.request, options))
    object[key] = value;
  object["timings"] = {{"prefill_s", answer.result.prefill_s},
                       {"decode_s", answer.result.decode_s}};
  return json::serialize(object);
}

std::string batch_summary(const BatchCounts& counts, const SamplingOptions& sampling,
                          const EngineRun& run, const std::vector<StageReport>& stages) {
  const double seconds = counts.prefill_s + counts.decode_s;
  std::string text = fmt::format(
      "\n{} answered, {} refused, {} cancelled; prompts: {} tokens, {:.1f} tok/s; answers: {} "
      "tokens in {} steps, {:.1f} tok/s overall{}; loaded in {:.2f} s\n",
      counts.answered, counts.refused, counts.cancelled, counts.prompt_tokens,
      counts.prefill_s > 0 ? static_cast<double>(counts.prompt_tokens) / counts.prefill_s : 0,
      counts.answer_tokens, counts.steps,
      seconds > 0 ? static_cast<double>(counts.answer_tokens) / seconds : 0, seed_text(sampling),
      run.load_seconds());
  return text + cache_line(run.cache_health()) +
         stage_table(stages, run.plan().limits.kv_dtype, seconds);
}

}  // namespace convoy
