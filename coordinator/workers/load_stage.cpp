#include "coordinator/workers/load_stage.h"

namespace convoy {
namespace {

void fill(proto::StageMemory& out, const StageMemory& in) {
  out.set_weight_bytes(in.weight_bytes);
  out.set_kv_bytes(in.kv_bytes);
  out.set_state_bytes(in.state_bytes);
  out.set_workspace_bytes(in.workspace_bytes);
  out.set_link_bytes(in.link_bytes);
  out.set_runtime_bytes(in.runtime_bytes);
}

void fill(proto::CapacityCurve& out, const CapacityCurve& in) {
  out.set_pages_min(static_cast<uint32_t>(in.pages_min));
  out.set_b_min(in.bytes_min);
  out.set_step(in.bytes_per_page);
}

}  // namespace

proto::ToWorker load_stage(const StagePlan& plan, size_t rank, const WorkerSettings& settings) {
  const StageAssignment& stage = plan.stages[rank];
  proto::ToWorker message;
  proto::LoadStage& load = *message.mutable_load_stage();
  load.set_model_directory(settings.model_directory.native());
  load.set_load_format(settings.load_format == LoadFormat::dummy ? proto::DUMMY : proto::AUTO);
  load.set_cuda_graphs(settings.cuda_graphs);
  load.mutable_plan()->set_rank(static_cast<uint32_t>(stage.rank.value));
  load.mutable_plan()->set_device(stage.device.id);
  load.mutable_plan()->set_device_uuid(stage.device.uuid);
  load.mutable_plan()->set_layer_begin(static_cast<uint32_t>(stage.layers.begin));
  load.mutable_plan()->set_layer_end(static_cast<uint32_t>(stage.layers.end));
  fill(*load.mutable_plan()->mutable_memory(), stage.memory);
  fill(*load.mutable_plan()->mutable_capacity(), stage.capacity);
  load.mutable_limits()->set_max_context_tokens(
      static_cast<uint32_t>(plan.limits.max_context_tokens));
  load.mutable_limits()->set_prefill_chunk_tokens(
      static_cast<uint32_t>(plan.limits.prefill_chunk_tokens));
  load.mutable_limits()->set_lanes(static_cast<uint32_t>(plan.limits.lanes));
  load.mutable_limits()->set_page_groups(static_cast<uint32_t>(plan.limits.page_groups));
  load.mutable_limits()->set_image_slots(static_cast<uint32_t>(plan.limits.image_slots));
  load.mutable_limits()->set_host_pages(static_cast<uint32_t>(plan.limits.host_pages));
  load.mutable_limits()->set_host_slots(static_cast<uint32_t>(plan.limits.host_slots));
  load.mutable_limits()->set_kv_dtype(static_cast<proto::KvDtype>(plan.limits.kv_dtype));
  load.set_stages(static_cast<uint32_t>(plan.stages.size()));
  load.set_threads(static_cast<uint32_t>(settings.threads));
  load.set_log_level(settings.log_level);
  load.set_test_hold(settings.test_hold);
  return message;
}

}  // namespace convoy
