# Third-party libraries, linked statically so that the programs run on any machine with a new enough libc.
# docs/dependencies.md says what each is for.

set(Boost_USE_STATIC_LIBS ON)
set(Protobuf_USE_STATIC_LIBS ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(Protobuf REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)

# Debian ships fmt and spdlog as shared libraries only. Their implementations are compiled once here.
add_library(convoy_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_impl.cpp)
target_include_directories(convoy_fmt SYSTEM PUBLIC $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)

add_library(convoy_spdlog STATIC ${PROJECT_SOURCE_DIR}/cmake/spdlog_impl.cpp)
target_compile_definitions(convoy_spdlog PUBLIC SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
target_include_directories(convoy_spdlog SYSTEM PUBLIC $<TARGET_PROPERTY:spdlog::spdlog_header_only,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(convoy_spdlog PUBLIC convoy_fmt Threads::Threads)

# Boost.Asio likewise: its non-template half is compiled once.
add_library(convoy_asio STATIC ${PROJECT_SOURCE_DIR}/cmake/asio_impl.cpp)
target_compile_definitions(convoy_asio PUBLIC BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(convoy_asio PUBLIC Boost::headers Threads::Threads)

# convoy_static_archive(NAME FILE): an imported target for a static archive that has no CMake package here.
function(convoy_static_archive name file header)
  find_library(${name}_LIBRARY NAMES ${file} REQUIRED)
  find_path(${name}_INCLUDE NAMES ${header} REQUIRED)
  add_library(${name} STATIC IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${${name}_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${${name}_INCLUDE})
endfunction()
convoy_static_archive(convoy_pcre2 libpcre2-8.a pcre2.h)
set_target_properties(convoy_pcre2 PROPERTIES INTERFACE_COMPILE_DEFINITIONS PCRE2_CODE_UNIT_WIDTH=8)
add_library(convoy_icudata STATIC ${PROJECT_SOURCE_DIR}/cmake/icudata_impl.cpp)
convoy_static_archive(convoy_icuuc libicuuc.a unicode/normalizer2.h)
set_target_properties(convoy_icuuc PROPERTIES INTERFACE_LINK_LIBRARIES "convoy_icudata;${CMAKE_DL_LIBS}")

convoy_static_archive(convoy_xxhash libxxhash.a xxhash.h)

# Line editing, with what its static archive needs.
convoy_static_archive(convoy_tinfo libtinfo.a curses.h)
convoy_static_archive(convoy_md libmd.a md5.h)
convoy_static_archive(convoy_bsd libbsd.a bsd/bsd.h)
set_target_properties(convoy_bsd PROPERTIES INTERFACE_LINK_LIBRARIES convoy_md)
convoy_static_archive(convoy_edit libedit.a histedit.h)
set_target_properties(convoy_edit PROPERTIES INTERFACE_LINK_LIBRARIES "convoy_bsd;convoy_tinfo")
