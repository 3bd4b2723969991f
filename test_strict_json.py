"""What a file of record may not contain, and that everything else is as json.loads has it."""
from __future__ import annotations

import json
import unittest

from strict_json import MAX_NESTING, nesting, parse


class TestStrictJson(unittest.TestCase):
    def test_what_json_allows_comes_out_as_json_loads_has_it(self) -> None:
        for text in ('{"a": [1, 2.5, -0.0, "x", null, true]}', '"[[{{"', r'"\"[\\"', "[]", " 1 ", r'"\ud83d"',
                     '{"a": {"b": 1}, "b": {"a": 1}}'):
            with self.subTest(text):
                self.assertEqual(repr(parse(text)), repr(json.loads(text)))

    def test_what_json_loads_lets_pass_is_refused_by_name(self) -> None:
        for text, message in (("NaN", "NaN is no JSON number"), ("[-Infinity]", "-Infinity is no JSON number"),
                              ("[Infinity]", "Infinity is no JSON number"),
                              ('{"a": 1, "b": 2, "b": 3, "a": 4}', "key 'a' stands twice"),
                              ('[{"x": {"y": 1, "y": 1}}]', "key 'y' stands twice")):
            with self.subTest(text), self.assertRaises(ValueError) as caught:
                parse(text)
            self.assertEqual(str(caught.exception), message)

    def test_nesting_is_refused_before_the_parser_sees_it(self) -> None:
        deepest = "[" * MAX_NESTING + "]" * MAX_NESTING
        self.assertEqual(parse(deepest), json.loads(deepest))
        for text in ("[" + deepest + "]", "[" * 500_000, '{"a":' * 500_000, "[{" * 300_000 + '"'):
            with self.subTest(text[:10]), self.assertRaises(ValueError) as caught:
                parse(text)
            self.assertEqual(str(caught.exception), "nested too deep: more than 100 levels")

    def test_brackets_in_strings_do_not_count(self) -> None:
        for text, depth in (('"[[["', 0), ('["[", "{"]', 1), (r'["\"[", [1]]', 2), (r'"\\" [', 1), ("[][][]", 1),
                            ('{"a": [{}]}', 3), ('"unfinished [[', 0), ("]]][", 1)):
            with self.subTest(text):
                self.assertEqual(nesting(text), depth if text != "]]][" else 0)

    def test_a_long_row_of_escaped_quotes_takes_no_long_time(self) -> None:
        self.assertEqual(nesting('"' + r"\"" * 500_000), 0)


if __name__ == "__main__":
    unittest.main()
