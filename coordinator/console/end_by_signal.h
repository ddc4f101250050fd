// Ending the way the shell expects of a program that a signal stopped.
#pragma once

namespace convoy {

/// Ends this process by `number` with its default action. Nothing is destroyed: everything must
/// have been put away before.
[[noreturn]] void end_by_signal(int number);

}  // namespace convoy
