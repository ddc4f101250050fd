#include "coordinator/probe/probe_messages.h"

#include <boost/json.hpp>

namespace convoy {
namespace {

namespace json = boost::json;

json::object device_object(const DeviceInfo& info) {
  return {{"kind", device_kind_name(info.kind)},
          {"id", info.id},
          {"name", info.name},
          {"uuid", info.uuid},
          {"pci_id", info.pci_id},
          {"architecture", info.architecture},
          {"total_bytes", info.total_bytes},
          {"free_bytes", info.free_bytes},
          {"threads", info.threads}};
}

std::string text_of(const json::object& object, const char* key) {
  return json::value_to<std::string>(object.at(key));
}

DeviceInfo device_of(const json::object& object) {
  DeviceInfo info;
  info.kind = text_of(object, "kind") == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  info.id = text_of(object, "id");
  info.name = text_of(object, "name");
  info.uuid = text_of(object, "uuid");
  info.pci_id = text_of(object, "pci_id");
  info.architecture = text_of(object, "architecture");
  info.total_bytes = object.at("total_bytes").to_number<uint64_t>();
  info.free_bytes = object.at("free_bytes").to_number<uint64_t>();
  info.threads = object.at("threads").to_number<int>();
  return info;
}

ProbeMessage message_of(const json::object& object) {
  ProbeMessage message;
  const std::string kind = text_of(object, "message");
  if (kind == "device") {
    message.kind = ProbeMessage::Kind::device;
    message.device = device_of(object.at("device").as_object());
  } else if (kind == "connected") {
    message.kind = ProbeMessage::Kind::connected;
    message.transport = text_of(object, "transport");
    message.fallback = text_of(object, "fallback");
  } else if (kind == "measurement") {
    message.kind = ProbeMessage::Kind::measurement;
    message.measurement = {
        object.at("bytes").to_number<uint64_t>(), object.at("p50_us").to_number<double>(),
        object.at("p99_us").to_number<double>(), object.at("gib_per_s").to_number<double>()};
  } else {
    message.error = text_of(object, "error");
  }
  return message;
}

}  // namespace

std::string to_line(const ProbeMessage& message) {
  json::object object;
  switch (message.kind) {
    case ProbeMessage::Kind::device:
      object = {{"message", "device"}, {"device", device_object(message.device)}};
      break;
    case ProbeMessage::Kind::connected:
      object = {{"message", "connected"},
                {"transport", message.transport},
                {"fallback", message.fallback}};
      break;
    case ProbeMessage::Kind::measurement:
      object = {{"message", "measurement"},
                {"bytes", message.measurement.bytes},
                {"p50_us", message.measurement.p50_us},
                {"p99_us", message.measurement.p99_us},
                {"gib_per_s", message.measurement.gib_per_s}};
      break;
    case ProbeMessage::Kind::error:
      object = {{"message", "error"}, {"error", message.error}};
      break;
  }
  return json::serialize(object) + "\n";
}

Result<ProbeMessage> parse_probe_line(const std::string& line) {
  try {
    return message_of(json::parse(line).as_object());
  } catch (const std::exception& error) {
    return Error{"a probe process said '" + line + "': " + error.what()};
  }
}

}  // namespace convoy
