#include "base/start_thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "base/exit_code.h"

namespace convoy {
namespace {

// A new thread inherits the mask.
class SignalMask {
 public:
  explicit SignalMask(std::initializer_list<int> taken) {
    sigset_t masked;
    sigfillset(&masked);
    for (const int signal : taken) sigdelset(&masked, signal);
    pthread_sigmask(SIG_SETMASK, &masked, &before_);
  }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;
  ~SignalMask() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

std::thread start_thread(const std::string& name, std::function<void()> run,
                         std::initializer_list<int> signals) {
  const SignalMask mask(signals);
  try {
    std::thread thread(std::move(run));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::system_error& error) {
    throw StartError("cannot start thread " + name + ": " + error.what());
  }
}

}  // namespace convoy
