// A child that must not outlive the process that spawned it.
#pragma once

namespace convoy {

/// The kernel kills this process together with the thread that spawned it. False: the parent was
/// gone before that could be said.
bool tie_to_parent(int parent_pid);

}  // namespace convoy
