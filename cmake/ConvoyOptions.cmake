# Compiler settings that every target of ours shares, and the options a person may set.

set(CONVOY_CUDA AUTO CACHE STRING "Build the CUDA targets: AUTO (if nvcc 12.8 or newer is found), ON or OFF")
set_property(CACHE CONVOY_CUDA PROPERTY STRINGS AUTO ON OFF)
set(CONVOY_SANITIZE "" CACHE STRING "Sanitizers for every target, e.g. address,undefined or thread")
option(CONVOY_FUZZ "Build the libFuzzer programs (needs clang; scripts/fuzz does it)" OFF)
option(CONVOY_BENCHMARKS "Build the micro-benchmarks" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CONVOY_CCACHE ccache)
if(CONVOY_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CONVOY_CCACHE})
endif()

# -Wno-restrict: g++ 12 warns wrongly about "text" + std::string (GCC bug 105651).
# Every target of ours links this one: warnings are errors, products and sums are never fused by the
# compiler (where a fused multiply-add is meant it is written), so that every variant has the same bits.
add_library(convoy_flags INTERFACE)
target_compile_options(convoy_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Werror $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -ffp-contract=off -fvisibility=hidden>)
target_include_directories(convoy_flags INTERFACE ${PROJECT_SOURCE_DIR})

if(CONVOY_SANITIZE)
  set(sanitize -fsanitize=${CONVOY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_compile_options(${sanitize})
  # g++ warns that ThreadSanitizer does not see Boost.Asio's fences.
  if(CONVOY_SANITIZE STREQUAL "thread")
    add_compile_options(-Wno-tsan)
  endif()
  add_link_options(${sanitize})
else()
  # The programs travel: they need libc and libm of the machine they run on and nothing else.
  add_link_options(-static-libstdc++ -static-libgcc)
endif()

# convoy_library(NAME SOURCES… [DEPENDS public libraries…] [PRIVATE private libraries…]): one static library per box.
function(convoy_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC convoy_flags ${arg_DEPENDS} PRIVATE ${arg_PRIVATE})
endfunction()
