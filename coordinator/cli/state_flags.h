// --save-state and --load-state of convoy generate.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "coordinator/generate/generation.h"

namespace convoy {

/// As typed.
class StateFlags {
 public:
  void add_to(CLI::App& command);
  CLI::Option* save() const { return save_; }
  CLI::Option* load() const { return load_; }
  bool loads() const { return load_->count() > 0; }
  bool saves() const { return save_->count() > 0; }
  /// Before anything is read. Throws UsageError.
  void check(int max_tokens) const;

  /// What the request saves, and the state that it goes on from: its prompt, what was generated
  /// behind it, and whether that was reasoning. Throws StartError that names the file, or
  /// FatalError (request refused) where nothing can follow the state.
  void take(GenerationRequest& request, const Checkpoint& checkpoint, const Tokenizer& tokenizer,
            const StagePlan& plan, const ContextLimit& context) const;
  /// That the state of the request's answer can be written, as far as its length is known. Throws
  /// StartError.
  void check_room(const GenerationRequest& request, const ModelConfig& config,
                  const StagePlan& plan) const;

 private:
  void refuse_ended(const GenerationRequest& request, const Tokenizer& tokenizer) const;

  std::string save_file_;
  std::string load_file_;
  CLI::Option* save_ = nullptr;
  CLI::Option* load_ = nullptr;
};

}  // namespace convoy
