// A template or a request that wants everything gets an error soon, and the process lives on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/chat_template/template_fixture.h"

namespace convoy {
namespace {

using template_test::rendered;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

constexpr const char* kSteps = "steps";
constexpr const char* kMemory = "bytes of memory";
constexpr const char* kDepth = "levels";

TEST(HostileTemplate, EndsAtALimitThatTheErrorNames) {
  const std::pair<std::string, const char*> templates[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", kSteps},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", kDepth},
      {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
       kDepth},
      {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
       kSteps},
      {"{{ 'x' * 999999999999 }}", kMemory},
      {"{{ 'x' * 170141183460469231731687303715884105727 }}", kMemory},
      {"{{ [1] * 999999999999 }}", kMemory},
      {"{% set s = namespace(t='x') %}{% for i in range(60) %}{% set s.t = s.t + s.t %}{% endfor "
       "%}",
       kMemory},
      {"{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = s.t + s.t %}{% endfor "
       "%}",
       kMemory},
      {"{% set s = namespace(t=[1]) %}{% for i in range(9999) %}{% set s.t = [s.t] %}{% endfor %}",
       kDepth},
      {"{% set s = namespace(t={}) %}{% for i in range(9999) %}{% set s.t = {'a': s.t} %}{% endfor "
       "%}",
       kDepth},
      {"{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = [s.t, s.t] %}{% endfor "
       "%}{{ s.t }}",
       kMemory},
      {"{% set s = namespace(t=[1]) %}{% for i in range(60) %}{% set s.t = [s.t, s.t] %}{% endfor "
       "%}{{ s.t | tojson | length }}",
       kMemory},
      {"{% set s = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set s.a = [s.a, s.a] %}{% "
       "set s.b = [s.b, s.b] %}"
       "{% endfor %}{{ s.a == s.b }}",
       kSteps},
      {"{% set s = namespace(t='xxxxxxxxxx') %}{% for i in range(20) %}{% set s.t = s.t | "
       "replace('x', s.t) %}{% endfor %}",
       kMemory},
      {"{% set x = 'y' * 1000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
       "rendered text"},
      {"{% set x = 'y' * 10000000 %}{% for i in range(99999) %}{{ x | upper | length }}{% endfor "
       "%}",
       kSteps},
      {"{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% "
       "endfor %}",
       kSteps},
      {"{% set x %}{% for i in range(99999) %}{{ 'y' * 100000 }}{% endfor %}{% endset %}", kMemory},
      {"{{ ('x,' * 9999999).split(',') | length }}", kMemory},
      {"{{ ('x' * 9999999) | list | length }}", kMemory},
      {"{{ ('x' * 9999999) | indent(1000) | length }}{{ ('\\n' * 9999999) | indent(1000, "
       "blank=true) | length }}",
       kMemory},
      {"{{ range(99999) | unique | list | length }}", kSteps},
      {"{{ (range(99999) | list * 100) | tojson(indent=900) | length }}", kMemory},
      {"{{ ['a'] | map(" + repeated("'map', ", 2000) + "'upper') | list }}", kDepth},
      {"{{ 2 ** 200 }}", "128 bits"},
      {"{{ 10 ** 99999999999 }}", "128 bits"},
      {"{{ strftime_now('%99999999d') }}", "longer than"},
  };
  for (const auto& [source, limit] : templates) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = rendered(source);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_THAT(error, AnyOf(HasSubstr(limit), HasSubstr(kSteps))) << source.substr(0, 200);
    EXPECT_THAT(error, HasSubstr("error: t: line ")) << source.substr(0, 200);
    EXPECT_LT(seconds.count(), 60) << source.substr(0, 200);
  }
}

TEST(HostileTemplate, LimitsAreTheCallers) {
  const std::string source = "{% for i in range(100) %}{{ 'abcdefghij' }}{% endfor %}";
  EXPECT_EQ(rendered(source).size(), 1000u);
  RenderOptions few_bytes;
  few_bytes.limits.max_output_bytes = 999;
  EXPECT_THAT(rendered(source, {}, few_bytes), HasSubstr("more than 999 bytes"));
  few_bytes.limits.max_output_bytes = 1000;
  EXPECT_EQ(rendered(source, {}, few_bytes).size(), 1000u);
  RenderOptions few_steps;
  few_steps.limits.max_steps = 300;
  EXPECT_THAT(rendered(source, {}, few_steps), HasSubstr("more than 300 steps"));
  RenderOptions little_memory;
  little_memory.limits.max_live_bytes = 2000;
  EXPECT_THAT(rendered(source, {}, little_memory), HasSubstr("more than 2000 bytes of memory"));
  RenderOptions shallow;
  shallow.limits.max_depth = 3;
  EXPECT_THAT(rendered("{{ 1 + (2 + (3 + 4)) }}", {}, shallow), HasSubstr("deeper than 3 levels"));
}

TEST(HostileTemplate, MemoryIsCountedOnlyWhileAValueLives) {
  // 300 values of 1 MB, one after the other, fit a limit of 16 MB.
  RenderOptions options;
  options.limits.max_live_bytes = 16 << 20;
  EXPECT_EQ(
      rendered("{% for i in range(300) %}{% set x = 'y' * 1000000 %}{% endfor %}ok", {}, options),
      "ok");
}

TEST(HostileTemplate, ManySmallPiecesAddUp) {
  // 1,000 texts of at least 10 bytes each; nothing in it takes 60,000 bytes at once.
  const std::string source = "{{ [" + repeated("'abcdefghi' ~ 1, ", 1000) + "] | length }}";
  RenderOptions options;
  options.limits.max_live_bytes = 60000;
  EXPECT_THAT(rendered(source, {}, options), HasSubstr("more than 60000 bytes of memory"));
  options.limits.max_live_bytes = 200000;
  EXPECT_EQ(rendered(source, {}, options), "1000");
}

TEST(HostileTemplate, NestingInTheSourceIsBounded) {
  const std::string sources[] = {
      "{{ " + repeated("(", 10000) + "1" + repeated(")", 10000) + " }}",
      "{{ " + repeated("[", 10000) + repeated("]", 10000) + " }}",
      "{{ " + repeated("not ", 10000) + "1 }}",
      "{{ " + repeated("-", 10000) + "1 }}",
      "{{ 1" + repeated(" + 1", 10000) + " }}",
      "{{ x" + repeated(".x", 10000) + " }}",
      "{{ x" + repeated("[0]", 10000) + " }}",
      "{{ x" + repeated(" | trim", 10000) + " }}",
      "{{ x" + repeated("()", 10000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 10000) + " }}",
      "{{ 1" + repeated(" if 1", 10000) + " }}",
      "{{ 1" + repeated(" ** 1", 10000) + " }}",
      repeated("{% if 1 %}", 10000) + repeated("{% endif %}", 10000),
      repeated("{% for x in y %}", 10000) + repeated("{% endfor %}", 10000),
      "{% set " + repeated("(", 10000) + "a" + repeated(")", 10000) + " = 1 %}",
  };
  for (const std::string& source : sources) {
    EXPECT_THAT([&] { ChatTemplate::parse(source, "t"); },
                ::testing::ThrowsMessage<StartError>(HasSubstr("levels")))
        << source.substr(0, 40);
  }
}

TEST(HostileTemplate, LongButFlatSourcesWork) {
  EXPECT_EQ(rendered("{{ 'a'" + repeated(" ~ 'a'", 5000) + " }}").size(), 5001u);
  EXPECT_EQ(rendered("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"),
            "x");
  EXPECT_THAT(rendered(std::string((1 << 20) + 1, 'x')), HasSubstr("at most 1048576"));
}

TEST(HostileRequest, DeepValuesAreRefused) {
  boost::json::value deep = 1;
  for (int i = 0; i < 200; ++i) deep = boost::json::array{deep};
  boost::json::object context;
  context["x"] = deep;
  EXPECT_THAT(rendered("{{ x }}", context), HasSubstr("nest deeper than 100 levels"));
}

TEST(HostileRequest, WordsOfTheTemplateLanguageInTextStayText) {
  boost::json::object context;
  context["x"] = "{{ 1 + 1 }}{% raw %}{#";
  EXPECT_EQ(rendered("{{ x }}", context), "{{ 1 + 1 }}{% raw %}{#");
}

}  // namespace
}  // namespace convoy
