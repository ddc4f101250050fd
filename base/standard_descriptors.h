// stdin, stdout and stderr of a program that was started without some of them.
#pragma once

namespace convoy {

/// Opens those of descriptors 0 to 2 that are closed, so that no file of the program becomes one of
/// them and receives what is meant for a person. Using them still fails with EBADF, as it would
/// have without. Called by main before anything else opens.
void open_standard_descriptors();

}  // namespace convoy
