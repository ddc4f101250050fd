// What is not supported or not well-formed is refused with its place when the template is parsed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/chat_template/template_fixture.h"

namespace convoy {
namespace {

using template_test::rendered;
using ::testing::HasSubstr;

struct Refusal {
  const char* source;
  const char* place;
  const char* word;  ///< of the message
};

std::string parse_error(const std::string& source) {
  try {
    const auto parsed = ChatTemplate::parse(source, "dir/chat_template.jinja");
    return "parsed";
  } catch (const StartError& error) {
    return error.what();
  }
}

TEST(ChatTemplateRefusals, UnsupportedConstructsNameTheirLineAndColumn) {
  const Refusal refusals[] = {
      {"{% include 'x' %}", "line 1, column 4", "\"include\" is not supported"},
      {"a\n{% extends 'x' %}", "line 2, column 4", "\"extends\" is not supported"},
      {"{% import 'x' as y %}", "line 1, column 4", "\"import\" is not supported"},
      {"{% from 'x' import y %}", "line 1, column 4", "\"from\" is not supported"},
      {"{% block b %}{% endblock %}", "line 1, column 4", "\"block\" is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "line 1, column 4",
       "\"autoescape\" is not supported"},
      {"{% do x %}", "line 1, column 4", "\"do\" is not supported"},
      {"{% print x %}", "line 1, column 4", "\"print\" is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "line 1, column 15", "recursive"},
      {"{{ x | urlize }}", "line 1, column 8", "\"urlize\" is not supported"},
      {"\xC3\xA9\xC3\xA9 {{ x | wordwrap }}", "line 1, column 11", "\"wordwrap\" is not supported"},
      {"{{ x | escape }}", "line 1, column 8", "\"escape\" is not supported"},
      {"{{ x is escaped }}", "line 1, column 9", "\"escaped\" is not supported"},
      {"{{ x | map('pprint') }}", "line 1, column 12", "\"pprint\" is not supported"},
      {"{{ x | selectattr('a', 'filter') }}", "line 1, column 24", "\"filter\" is not supported"},
      {"{{ x.format(1) }}", "line 1, column 6", "\"format\" is not supported"},
      {"{{ x.append(1) }}", "line 1, column 6", "\"append\" is not supported"},
      {"{{ cycler(1) }}", "line 1, column 4", "\"cycler\" is not supported"},
      {"{{ f(*x) }}", "line 1, column 6", "\"*\" in front of an argument"},
      {"{{ f(**x) }}", "line 1, column 6", "\"**\" in front of an argument"},
      {"{{ x[1, 2] }}", "line 1, column 7", "several subscripts"},
      {"{{ 0x1f }}", "line 1, column 4", "other bases"},
      {"{{ '\\N{DASH}' }}", "line 1, column 5", "\\N{...}"},
      {"{% set x %}{% break %}{% endset %}", "line 1, column 15", "outside of a loop"},
  };
  for (const Refusal& refusal : refusals) {
    const std::string error = parse_error(refusal.source);
    EXPECT_THAT(error, HasSubstr(std::string("dir/chat_template.jinja: ") + refusal.place + ": "))
        << refusal.source;
    EXPECT_THAT(error, HasSubstr(refusal.word)) << refusal.source;
  }
}

TEST(ChatTemplateRefusals, SyntaxErrorsNameTheirLineAndColumn) {
  const Refusal refusals[] = {
      {"ab\n  {% if x %}\n", "line 2, column 6", "\"if\" is never closed"},
      {"{% for x in y %}\n{% endif %}", "line 2, column 4", "expected \"endfor\" or \"else\""},
      {"{% endif %}", "line 1, column 4", "closes nothing"},
      {"x\r\n\r\n{{ 1 + }}", "line 3, column 8", "expected an expression, found \"}}\""},
      {"{{ x", "line 1, column 1", "\"{{\" is never closed"},
      {"\n\n {# x", "line 3, column 2", "comment"},
      {"{% raw %} x", "line 1, column 1", "raw block"},
      {"{{ 'x }}", "line 1, column 4", "closing quote"},
      {"{{ (1] }}", "line 1, column 6", "unexpected \"]\", expected \")\""},
      {"{{ 1 ? 2 }}", "line 1, column 6", "unexpected character \"?\""},
      {"{{ \xE6\x97\xA5 }}", "line 1, column 4", "unexpected character \"\xE6\x97\xA5\""},
      {"{{ a b }}", "line 1, column 6", "found \"b\""},
      {"{% set true = 1 %}", "line 1, column 8", "cannot be assigned"},
      {"{{ '\\ud800' }}", "line 1, column 7", "no Unicode character"},
      {"{{ '\\x4' }}", "line 1, column 7", "more digits"},
      {"{{ 1 | nosuch }}", "line 1, column 8", "\"nosuch\" is not supported"},
      {"ab\xFFz", "line 1, column 3", "not valid UTF-8"},
      {"{{ f(a=1, a=2) }}", "line 1, column 11", "given twice"},
      {"{% macro m(a, a) %}{% endmacro %}", "line 1, column 15", "named twice"},
      {"{{ 99999999999999999999999999999999999999999 }}", "line 1, column 4", "128 bits"},
  };
  for (const Refusal& refusal : refusals) {
    const std::string error = parse_error(refusal.source);
    EXPECT_THAT(error, HasSubstr(refusal.place)) << refusal.source;
    EXPECT_THAT(error, HasSubstr(refusal.word)) << refusal.source;
  }
}

TEST(ChatTemplateRefusals, ErrorsWhileRenderingNameTheirPlace) {
  const Refusal refusals[] = {
      {"a\n{{ x.y }}", "line 2, column 6", "'x' is undefined"},
      {"{{ 'a' }}{{ 1 + 'a' }}", "line 1, column 15", "unsupported operand types for +"},
      {"{% set x = 1 %}\n{% for a in x %}{% endfor %}", "line 2, column 13",
       "'int' object is not iterable"},
      {"{{ 'a'|length\n  |indent }}", "line 2, column 4", "a text is expected, not int"},
      {"{% if 1 %}{{ raise_exception('bad ' ~ 7) }}{% endif %}", "line 1, column 14", "bad 7"},
      {"{% macro m(x) %}{{ x.y.z }}{% endmacro %}\n{{ m({}) }}", "line 1, column 24",
       "'dict object' has no attribute 'y'"},
      {"{{ '%s' % 1 }}", "line 1, column 9", "not supported"},
      {"{% set a = namespace() %}{% set b = [a] %}", "line 1, column 37",
       "cannot hold a namespace"},
      {"{{ 170141183460469231731687303715884105727 + 1 }}", "line 1, column 44", "128 bits"},
  };
  for (const Refusal& refusal : refusals) {
    const std::string error = rendered(refusal.source);
    EXPECT_THAT(error, HasSubstr(std::string("error: t: ") + refusal.place + ": "))
        << refusal.source;
    EXPECT_THAT(error, HasSubstr(refusal.word)) << refusal.source;
  }
}

TEST(ChatTemplateRefusals, ATemplateCutAnywhereIsRefusedOrParsed) {
  const std::string source = template_test::fixture_text("qwen35_style.jinja");
  for (size_t size = 0; size < source.size(); size += 7) {
    const std::string error = parse_error(source.substr(0, size));
    if (error != "parsed") {
      EXPECT_THAT(error, HasSubstr("dir/chat_template.jinja: line "));
    }
  }
}

}  // namespace
}  // namespace convoy
