#include "stage_worker/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <new>

#include "base/exit_code.h"
#include "base/log.h"
#include "kernels/device/stalling_calls.h"
#include "shared/stage/open_device.h"
#include "stage_worker/step_loop.h"

namespace convoy {
namespace {

// Thrown out of a load when the conversation ends meanwhile; nobody is left to tell.
struct LoadAbandoned {};

StageLimits limits_from(const proto::StageLimits& in) {
  return {.max_context_tokens = static_cast<int>(in.max_context_tokens()),
          .prefill_chunk_tokens = static_cast<int>(in.prefill_chunk_tokens()),
          .lanes = static_cast<int>(in.lanes()),
          .page_groups = static_cast<int>(in.page_groups()),
          .image_slots = static_cast<int>(in.image_slots()),
          .host_pages = static_cast<int>(in.host_pages()),
          .host_slots = static_cast<int>(in.host_slots()),
          .kv_dtype = static_cast<KvDtype>(in.kv_dtype())};
}

// A message is input like any other: what would be a broken invariant further down is refused here.
void check_load(const proto::LoadStage& message, const ModelConfig& config) {
  constexpr uint32_t kMaxTokens = 1U << 24;
  const auto& plan = message.plan();
  const auto& limits = message.limits();
  if (plan.layer_begin() >= plan.layer_end() ||
      plan.layer_end() > static_cast<uint32_t>(config.num_layers)) {
    throw StartError(fmt::format("LoadStage: layers [{}, {}) of a model with {}",
                                 plan.layer_begin(), plan.layer_end(), config.num_layers));
  }
  if (message.stages() < 2 || message.stages() > 64 || plan.rank() < 1 ||
      plan.rank() >= message.stages()) {
    throw StartError(fmt::format("LoadStage: rank {} of {} stages", plan.rank(), message.stages()));
  }
  if (limits.lanes() < 1 || limits.lanes() > kMaxLanes || limits.prefill_chunk_tokens() < 1 ||
      limits.prefill_chunk_tokens() % kPageTokens != 0 ||
      limits.prefill_chunk_tokens() > kMaxTokens || limits.max_context_tokens() < 1 ||
      limits.max_context_tokens() > kMaxTokens || limits.page_groups() < 1 ||
      limits.page_groups() > kMaxTokens || limits.image_slots() > kMaxTokens ||
      limits.host_pages() > kMaxTokens || limits.host_slots() > kMaxTokens) {
    throw StartError(
        fmt::format("LoadStage: {} lanes, chunk {}, context {}, {} page groups, {} image slots",
                    limits.lanes(), limits.prefill_chunk_tokens(), limits.max_context_tokens(),
                    limits.page_groups(), limits.image_slots()));
  }
}

void check_kv_dtype(const proto::StageLimits& limits, const Device& device) {
  const auto number = static_cast<uint32_t>(limits.kv_dtype());
  if (number < kKvDtypes && has_kv_dtype(device.kind(), static_cast<KvDtype>(number))) return;
  throw StartError(fmt::format(
      "LoadStage: KV dtype {} on {} devices",
      number < kKvDtypes ? kv_dtype_name(static_cast<KvDtype>(number)) : std::to_string(number),
      device_kind_name(device.kind())));
}

Status move_layers(StageExecutor& executor, Stream& stream, const proto::MoveState& request,
                   const std::vector<UniqueFd>& descriptors,
                   google::protobuf::RepeatedField<uint64_t>& hashes) {
  const StageLimits& limits = executor.limits();
  const auto tokens = request.tokens();
  const auto layers = executor.layers();
  const auto count = layers.end - layers.begin;
  if (descriptors.size() != 1)
    return Error{fmt::format("MoveState: {} descriptors, 1 expected", descriptors.size())};
  if (tokens < 1 || tokens > static_cast<uint32_t>(limits.max_context_tokens) ||
      request.pages_size() != (static_cast<int>(tokens) + kPageTokens - 1) / kPageTokens ||
      request.state_slot() < 0 || request.state_slot() >= limits.state_slots() ||
      (request.load() && request.hashes_size() != count)) {
    return Error{fmt::format("MoveState: {} tokens, {} pages, slot {}, {} hashes", tokens,
                             request.pages_size(), request.state_slot(), request.hashes_size())};
  }
  for (const int32_t page : request.pages()) {
    if (page < 0 || page >= limits.page_groups)
      return Error{fmt::format("MoveState: page group {} of {}", page, limits.page_groups)};
  }
  const std::vector<int32_t> pages(request.pages().begin(), request.pages().end());
  const SequencePlace place{.pages = pages, .state_slot = request.state_slot(), .tokens = tokens};
  StateLayout layout = state_layout(executor.config(), limits.kv_dtype, tokens);
  if (!request.load()) {
    const auto saved = executor.save_state(stream, place, descriptors.front().get(), layout);
    if (!saved) return Error{saved.error()};
    hashes.Add(saved.value().begin(), saved.value().end());
    return {};
  }
  for (int i = 0; i < count; ++i)
    layout.layers[static_cast<size_t>(layers.begin + i)].hash = request.hashes(i);
  return executor.load_state(stream, place, descriptors.front().get(), layout);
}

}  // namespace

Session::Session(const WorkerOptions& options, ControlThread& control, HealthState& health)
    : options_(options), control_(control), health_(health) {}

Session::~Session() {
  control_.set_ledger(nullptr);
}

SessionEnd Session::run() {
  for (;;) {
    WorkerCommand command = control_.next();
    if (command.kind == WorkerCommand::Kind::conversation_ended)
      return SessionEnd::conversation_ended;
    if (command.kind == WorkerCommand::Kind::shutdown) {
      // Giving a CUDA device's memory back piece by piece takes seconds; the driver takes it from a
      // process that ends at once.
      if (options_.control_fd >= 0 && device_ && device_->kind() == DeviceKind::cuda)
        ::_exit(static_cast<int>(ExitCode::done));
      return SessionEnd::shutdown;
    }
    try {
      switch (command.message.body_case()) {
        case proto::ToWorker::kLoadStage:
          load(command.message.load_stage());
          break;
        case proto::ToWorker::kOpenLinks:
          serve(command.message.open_links(), std::move(command.descriptors));
          break;
        case proto::ToWorker::kRelease: {
          control_.set_ledger(nullptr);
          ledger_.reset();
          executor_.reset();
          stream_.reset();
          device_.reset();
          proto::FromWorker released;
          released.mutable_released();
          control_.send(released);
          break;
        }
        default:
          break;
      }
    } catch (const LoadAbandoned&) {
      log(LogLevel::info, "load abandoned");
    } catch (const std::bad_alloc&) {
      send_error(proto::StageError::MEMORY, "out of memory");
    } catch (const FatalError& error) {
      send_error(proto::StageError::MODEL, error.what());
    }
  }
}

void Session::load(const proto::LoadStage& message) {
  if (executor_) throw StartError("LoadStage: a stage is loaded already");
  LogLevel level = LogLevel::info;
  if (parse_log_level(message.log_level(), level)) set_log_level(level);
  hold_ = HoldPoint(message.test_hold());
  health_.set_state(proto::StageHealth::LOADING);
  device_id_ = message.plan().device();
  rank_ = static_cast<int>(message.plan().rank());
  stages_ = static_cast<int>(message.stages());

  const Checkpoint checkpoint = Checkpoint::open(
      message.model_directory(),
      message.load_format() == proto::DUMMY ? LoadFormat::dummy : LoadFormat::automatic);
  check_load(message, checkpoint.config());
  const LayerRange layers{static_cast<int>(message.plan().layer_begin()),
                          static_cast<int>(message.plan().layer_end())};
  device_ =
      open_device(device_id_, static_cast<int>(message.threads()), message.plan().device_uuid());
  check_kv_dtype(message.limits(), *device_);
  stream_ = device_->make_stream();

  uint64_t total = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer)
    total += checkpoint.layer_bytes(layer);
  uint64_t loaded = 0;
  const auto progress = [&](uint64_t bytes) {
    hold_.reach(rank_, HoldPhase::load, health_, [this] { return control_.stopping(); });
    if (control_.stopping()) throw LoadAbandoned{};
    loaded += bytes;
    health_.set_load_progress(loaded, total);
    proto::FromWorker report;
    report.mutable_load_progress()->set_loaded_bytes(loaded);
    report.mutable_load_progress()->set_total_bytes(total);
    control_.send(report);
  };
  executor_.emplace(*device_, *stream_, checkpoint, layers, limits_from(message.limits()),
                    progress);
  executor_->prepare(*stream_, message.cuda_graphs());
  ledger_.emplace(control_.incarnation(), executor_->limits().page_groups,
                  executor_->limits().lanes);
  control_.set_ledger(&*ledger_);
  describe();
  health_.set_state(proto::StageHealth::READY);
  log(LogLevel::info, fmt::format("layers [{}, {}) loaded: {} bytes of weights", layers.begin,
                                  layers.end, executor_->memory().weight_bytes));

  const DeviceInfo info = device_->info();
  proto::FromWorker reply;
  proto::DeviceReport& device = *reply.mutable_loaded()->mutable_device();
  device.set_id(info.id);
  device.set_name(info.name);
  device.set_uuid(info.uuid);
  device.set_pci_id(info.pci_id);
  device.set_architecture(info.architecture);
  device.set_total_bytes(info.total_bytes);
  device.set_free_bytes(info.free_bytes);
  device.set_threads(static_cast<uint32_t>(info.threads));
  control_.send(reply);
}

void Session::describe() {
  const StageMemory memory = executor_->memory();
  proto::StageHealth description;
  description.set_rank(static_cast<uint32_t>(rank_));
  description.set_device(device_id_);
  description.set_layer_begin(static_cast<uint32_t>(executor_->layers().begin));
  description.set_layer_end(static_cast<uint32_t>(executor_->layers().end));
  description.set_weight_bytes(memory.weight_bytes);
  description.set_kv_bytes(memory.kv_bytes);
  description.set_state_bytes(memory.state_bytes);
  description.set_workspace_bytes(memory.workspace_bytes);
  description.set_page_groups(static_cast<uint64_t>(executor_->limits().page_groups));
  description.set_kv_dtype(kv_dtype_name(executor_->limits().kv_dtype));
  health_.set_description(description);
  health_.set_free_bytes(device_->info().free_bytes);
}

void Session::serve(const proto::OpenLinks& message, std::vector<UniqueFd> descriptors) {
  if (!executor_) throw StartError("OpenLinks: no stage is loaded");
  if (descriptors.size() != 3)
    throw StartError(fmt::format("OpenLinks: {} descriptors, 3 expected", descriptors.size()));
  device_->set_wait_spins(static_cast<int>(message.spin_iterations()));
  auto loop = StepLoop::open({.rank = rank_,
                              .stages = stages_,
                              .last = rank_ == stages_ - 1,
                              .spin_iterations = static_cast<int>(message.spin_iterations())},
                             *executor_, *device_, *stream_, message, std::move(descriptors));
  if (!loop) return send_error(proto::StageError::LINK, loop.error());
  StepLoop& steps = *loop.value();
  control_.set_stop_hook([&steps] { steps.release_waiters(); });
  // A stop before the hook was set released nobody.
  if (control_.stopping()) steps.release_waiters();
  const auto connection = steps.connect();
  if (!connection) {
    control_.set_stop_hook({});
    // Not LINK, which says that a link failed while it served.
    if (!control_.stopping()) send_error(proto::StageError::DEVICE, connection.error());
    return;
  }
  steps.set_state_mover([this] { move_state(); });
  proto::FromWorker opened;
  opened.mutable_links_opened()->set_outgoing_transport(
      link_transport_name(connection.value().transport));
  opened.mutable_links_opened()->set_outgoing_fallback(connection.value().fallback);
  control_.send(opened);
  Status status;
  {
    const NoStallingCalls serving;
    status = steps.run(*ledger_, health_, hold_, [this] { return control_.stopping(); });
  }
  control_.set_stop_hook({});
  if (!status && !control_.stopping()) send_error(proto::StageError::RING, status.error());
}

// What is wrong with a request is the request's: the stage goes on.
void Session::move_state() {
  const auto command = control_.next_state_request();
  if (!command) return;
  const proto::MoveState& request = command->message.move_state();
  proto::FromWorker reply;
  proto::StateMoved& moved = *reply.mutable_state_moved();
  if (const Status status =
          move_layers(*executor_, *stream_, request, command->descriptors, *moved.mutable_hashes());
      !status)
    moved.set_error(status.error());
  control_.send(reply);
}

void Session::send_error(proto::StageError::Code code, const std::string& message) {
  log(LogLevel::error, message);
  health_.set_failed(message);
  proto::FromWorker reply;
  proto::StageError& error = *reply.mutable_error();
  error.set_code(code);
  error.set_rank(static_cast<uint32_t>(options_.rank));
  error.set_device(device_id_);
  error.set_message(message);
  control_.send(reply);
}

}  // namespace convoy
