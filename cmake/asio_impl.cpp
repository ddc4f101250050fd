// The one translation unit that holds Boost.Asio's non-template half.
#include <boost/asio/impl/src.hpp>
