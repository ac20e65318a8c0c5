"""The bundled text: sentences of the language reference, with nothing added and no markup left."""

import re
from pydoc_data import topics

import pytest

from jaxvec.demo import demo_sentences

TOPIC = """\
The "frob" statement
********************

The "frob" statement *binds* names (see **PEP 8**, e.g. Naming) in the double-
precision namespace. [1] "spam.frob()" undoes it (it is safe.  It never fails) at once:

   frob_stmt ::= "frob" name

   frob x  # This comment in code is a sentence, too.

   print("And so is this string, which is code as well.")

It is an error to frob a "None" value. It is an error to frob a "None" value.

+------------+-----------------------------------------------+
| This table | looks a little like a sentence or two of it.  |
+------------+-----------------------------------------------+

object.__frob__(self)

   Called when the "if" statement is frobbed.
   See Frobbing for more.

   Note:

     Frobbing is not "'thread-safe'" in any way.

* The first item frobs the second item.

* a fragment that is not a sentence.

Term of a list
   The definition of the term is kept.

New in version 3.5.

Changed in version 3.9: The value is now frobbed twice.

See also: something

-[ Footnotes ]-

[1] The footnote says that "x + 1" is odd.
"""

EXPECTED = [
    "The frob statement binds names (see PEP 8, e.g. Naming) in the double-precision namespace.",
    "It is an error to frob a None value.",
    'Called when the "if" statement is frobbed.',
    "Frobbing is not 'thread-safe' in any way.",
    "The first item frobs the second item.",
    "The definition of the term is kept.",
    "The value is now frobbed twice.",
    'The footnote says that "x + 1" is odd.',
]


@pytest.fixture(scope="module")
def sentences():
    return demo_sentences()


def letters(text):
    return re.sub(r"[\W_]", "", re.sub(r" \[\d+\]", "", text))


def test_prose_is_kept_and_everything_else_left_out(monkeypatch):
    monkeypatch.setattr(topics, "topics", {"frob": TOPIC})
    assert demo_sentences() == EXPECTED


def test_topics_are_taken_in_alphabetical_order_and_no_sentence_twice(monkeypatch):
    first, second = "This is the first sentence of all.", "This is the second sentence of all."
    monkeypatch.setattr(topics, "topics", {"b": f"{second} {first}", "a": f"{first} {second}"})
    assert demo_sentences() == [first, second]


def test_there_are_enough_sentences_to_whiten_384_dimensions(sentences):
    assert len(sentences) > 2000
    assert len(set(sentences)) == len(sentences)


def test_every_sentence_stands_in_the_reference(sentences):
    reference = "\n".join(letters(re.sub(r"\s+", " ", text)) for text in topics.topics.values())
    invented = [s for s in sentences if letters(s) not in reference]
    assert invented == []


def test_sentences_are_whole_and_free_of_markup(sentences):
    for sentence in sentences:
        assert 20 <= len(sentence) <= 400
        assert re.search(r"[.?!][)”\"']*$", sentence), sentence
        assert sentence.count("(") == sentence.count(")"), sentence
        assert not re.search(r"::|``|  |\n|>>>|\*\*\w+\*\*|(?<![\w\"'*])\*\w+\*(?!\w)", sentence), sentence


def test_it_is_deterministic(sentences):
    assert demo_sentences() == sentences
