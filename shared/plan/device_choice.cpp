#include "shared/plan/device_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace convoy {
namespace {

using Group = std::vector<DeviceOffer>;

// More than any card has, and small enough to be added up.
constexpr uint64_t kPlenty = uint64_t{1} << 50;

uint64_t bytes_of(const DeviceOffer& offer) {
  return std::min(offer.available_bytes.value_or(kPlenty), kPlenty);
}

uint64_t bytes_of(const Group& group) {
  uint64_t bytes = 0;
  for (const DeviceOffer& offer : group) bytes += bytes_of(offer);
  return bytes;
}

// Devices that may be put together, the group with the most memory first.
std::vector<Group> groups_of(const std::vector<DeviceOffer>& offers, bool mixed) {
  std::vector<Group> groups;
  for (const DeviceOffer& offer : offers) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return mixed || g.front().architecture == offer.architecture;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{});
    group->push_back(offer);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return bytes_of(a) > bytes_of(b); });
  return groups;
}

Group largest_first(Group group) {
  std::stable_sort(group.begin(), group.end(), [](const DeviceOffer& a, const DeviceOffer& b) {
    return bytes_of(a) > bytes_of(b);
  });
  return group;
}

// The `count` largest of `group`, in the order that `group` has.
Group largest(const Group& group, size_t count) {
  const Group sorted = largest_first(group);
  Group chosen;
  for (const DeviceOffer& offer : group) {
    const bool in =
        std::any_of(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count),
                    [&](const DeviceOffer& large) { return large.device.id == offer.device.id; });
    if (in) chosen.push_back(offer);
  }
  return chosen;
}

std::vector<DeviceSpec> specs_of(const Group& group) {
  std::vector<DeviceSpec> specs;
  for (const DeviceOffer& offer : group) specs.push_back(offer.device);
  return specs;
}

std::string names_of(const Group& group) {
  std::string names;
  for (const DeviceOffer& offer : group)
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", offer.device.id, offer.name);
  return names;
}

}  // namespace

DeviceChoice choose_devices(const std::vector<DeviceOffer>& offers, bool mixed, size_t most,
                            const std::function<bool(const std::vector<DeviceSpec>&)>& holds) {
  CONVOY_CHECK(!offers.empty(), "no device to choose from");
  const std::vector<Group> groups = groups_of(offers, mixed);
  for (size_t count = 1; count <= std::min(most, offers.size()); ++count) {
    for (const Group& group : groups) {
      if (group.size() < count) continue;
      const Group in_order = largest(group, count);
      for (const Group& tried : {in_order, largest_first(in_order)}) {
        if (!holds(specs_of(tried))) continue;
        const bool known = std::all_of(tried.begin(), tried.end(), [](const DeviceOffer& offer) {
          return offer.available_bytes.has_value();
        });
        return {specs_of(tried),
                fmt::format("{}: {} of {} GPUs {} the model and its context{}", names_of(tried),
                            count, offers.size(), count == 1 ? "holds" : "hold together",
                            known ? "" : ", as far as the driver tells")};
      }
    }
  }
  const Group all = largest(groups.front(), std::min(most, groups.front().size()));
  return {specs_of(all), fmt::format("{}: not even {} of {} GPUs hold the model and its context",
                                     names_of(all), all.size(), offers.size())};
}

}  // namespace convoy
