"""What make_corpus.py promises: the same 420 stories everywhere, each with its question."""
from __future__ import annotations

import contextlib
import io
import random
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import make_corpus as maker
from make_corpus import COLORS, THINGS, first_difference, make_corpus

HERE = Path(__file__).resolve().parent
REPAIR = "repair: python3 make_corpus.py --write\n"


class TestStories(unittest.TestCase):
    def setUp(self):
        self.text = make_corpus()
        self.stories = self.text.split("\n")[:-1]

    def test_there_are_420_distinct_stories_one_a_line(self):
        self.assertEqual((len(self.stories), len(set(self.stories))), (420, 420))
        self.assertTrue(self.text.endswith(".\n"))
        self.assertEqual(self.text.splitlines(), self.stories)
        self.assertEqual([story for story in self.stories if story != " ".join(story.split())], [])

    def test_the_characters_are_letters_spaces_and_stops(self):
        self.assertRegex(self.text, r"\A[A-Za-z .\n]+\Z")

    def test_the_last_sentence_of_each_story_asks_the_color_of_a_thing_named_with_it_before(self):
        for story in self.stories:
            before, last = re.fullmatch(r"(.+\.) ([^.]+)\.", story).groups()
            thing, color = [word for word in last.split() if word in THINGS + COLORS]
            with self.subTest(story=story):
                self.assertEqual(last.split()[-1], color)
                self.assertIn(color, COLORS)
                self.assertRegex(before, rf"\b{thing}\b")
                self.assertRegex(before, rf"\b{color}\b")

    def test_every_color_and_thing_is_asked_for(self):
        words = {word for story in self.stories for word in story.rstrip(".").rpartition(". ")[2].split()}
        self.assertEqual([word for word in COLORS + THINGS if word not in words], [])

    def words(self, story, kind):
        """The words of a story that are of this kind, without repetition."""
        return {word for word in re.findall(r"\w+", story) if word in kind}

    def test_some_stories_name_a_second_color_and_no_story_a_third(self):
        self.assertEqual({len(self.words(story, COLORS)) for story in self.stories}, {1, 2})

    def test_a_child_alone_in_its_story_is_he_or_she_as_its_name_says(self):
        seen = set()
        for story in self.stories:
            names = self.words(story, maker.NAMES)
            if len(names) == 1:
                said = self.words(story, {"He", "She"})
                self.assertLessEqual(said, {maker.NAMES[name] for name in names}, story)
                seen |= said
        self.assertEqual(seen, {"He", "She"})

    def test_it_is_made_from_its_own_seed_alone(self):
        self.addCleanup(random.setstate, random.getstate())
        random.seed(1)
        state = random.getstate()
        self.assertEqual(make_corpus(), self.text)
        self.assertEqual(random.getstate(), state, "the generator that all modules share was used")
        with mock.patch.object(maker, "SEED", maker.SEED + 1):
            self.assertNotEqual(make_corpus(), self.text)


class TestDistinct(unittest.TestCase):
    def test_a_story_told_again_is_not_written_again(self):
        told = [f"story {i // 3}." for i in range(3 * 420)]
        with mock.patch.object(maker, "tell", side_effect=told):
            self.assertEqual(make_corpus().splitlines(), [f"story {i}." for i in range(420)])


class TestFirstDifference(unittest.TestCase):
    def test_it_names_the_first_line_that_differs(self):
        for recorded, made, expected in (
                ("a\nb\nc\n", "a\nB\nC\n", "line 2 is 'b'; make_corpus.py makes 'B'"),
                ("a\r\nb\n", "a\nb\n", "line 1 is 'a\\r'; make_corpus.py makes 'a'"),
                ("a\n", "a\nb\n", "line 2 is ''; make_corpus.py makes 'b'"),
                ("a\nb\n", "a\n", "line 2 is 'b'; make_corpus.py makes ''"),
                ("a\nb", "a\nb\n", "it has 1 lines; make_corpus.py makes 2")):
            with self.subTest(recorded=recorded):
                self.assertEqual(first_difference(recorded, made), expected)


class TestMain(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "corpus.txt"

    def main(self, *argv):
        """(exit status, standard output, standard error) on a file of its own."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = maker.main(argv, self.path)
            except SystemExit as stop:
                status = stop.code
        return status, out.getvalue(), err.getvalue()

    def test_the_labs_corpus_is_what_the_program_makes(self):
        self.path = HERE / "corpus.txt"
        said = "corpus.txt is what make_corpus.py makes: 420 stories\n"
        self.assertEqual(self.main("--check"), (0, said, ""))
        self.assertEqual(self.path.read_bytes(), make_corpus().encode("ascii"))

    def test_write_makes_the_file_and_check_accepts_it(self):
        self.assertEqual(self.main("--write"), (0, "wrote corpus.txt: 420 stories\n", ""))
        self.assertEqual(self.path.read_bytes(), make_corpus().encode("ascii"))
        self.assertEqual(self.main("--check")[0], 0)

    def test_a_changed_file_is_refused_with_its_first_changed_line_and_left_alone(self):
        lines = make_corpus().split("\n")
        made = lines[2]
        lines[2] = lines[7] = "Mia had a kite."
        self.path.write_bytes("\n".join(lines).encode("ascii"))
        self.assertEqual(self.main("--check"), (1, "", (
            f"corpus.txt differs: line 3 is 'Mia had a kite.'; make_corpus.py makes {made!r}\n{REPAIR}")))
        self.assertEqual(self.path.read_bytes(), "\n".join(lines).encode("ascii"))

    def test_any_changed_byte_is_refused(self):
        text = make_corpus().encode("ascii")
        changed = {"crlf": text.replace(b"\n", b"\r\n"), "no last newline": text[:-1], "empty": b"",
                   "a story more": text + b"One more.\n", "a byte order mark": b"\xef\xbb\xbf" + text}
        for name, data in changed.items():
            self.path.write_bytes(data)
            status, out, err = self.main("--check")
            with self.subTest(change=name):
                self.assertEqual((status, out), (1, ""))
                self.assertTrue(err.startswith("corpus.txt differs: ") and err.endswith(REPAIR), err)

    def test_a_file_that_is_missing_or_not_utf_8_is_refused(self):
        for name, data in (("missing", None), ("not UTF-8", b"caf\xe9\n")):
            if data is not None:
                self.path.write_bytes(data)
            status, out, err = self.main("--check")
            with self.subTest(file=name):
                self.assertEqual((status, out), (1, ""))
                self.assertTrue(err.startswith("corpus.txt cannot be read: ") and err.endswith(REPAIR), err)

    def test_without_a_flag_it_shows_the_first_stories_and_writes_nothing(self):
        status, out, err = self.main()
        self.assertEqual((status, err, self.path.exists()), (0, "", False))
        self.assertEqual(out.splitlines()[:5], make_corpus().splitlines()[:5])
        self.assertRegex(out, r"\n\.\.\. 420 stories of \d+ names, \d+ things, \d+ colors\n\Z")

    def test_a_wrong_command_line_is_exit_status_2(self):
        for argv in (["--write", "--check"], ["--seed", "3"], ["other.txt"]):
            with self.subTest(argv=argv):
                self.assertEqual(self.main(*argv)[:2], (2, ""))
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    unittest.main()
