// Threads with a name and without signals.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <thread>

namespace convoy {

/// Runs `run` on a thread that tools show as `name` (the first 15 characters of it). It takes no
/// signals but `signals`: they belong to the threads that expect them. Throws StartError naming the
/// thread where the system gives no more of them.
std::thread start_thread(const std::string& name, std::function<void()> run,
                         std::initializer_list<int> signals = {});

}  // namespace convoy
