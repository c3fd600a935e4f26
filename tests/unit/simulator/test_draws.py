"""Random numbers of the simulator."""

from simulator.draws import Draws


def test_an_answer_depends_on_seed_and_question_alone():
    first, again = Draws(7), Draws(7)
    asked = [first.bits("log.append", actor, number) for actor in ("a", "b") for number in range(50)]
    assert [again.bits("log.append", actor, number) for actor in ("a", "b") for number in range(50)] == asked
    assert len(set(asked)) == 100
    assert Draws(8).bits("log.append", "a", 0) != asked[0]
    assert Draws(1).bits("x") == 3646550720783534185  # the same in every process, whatever its hash seed


def test_numbers_fill_their_range():
    numbers = [Draws(3).number("n", one) for one in range(2_000)]
    assert all(0 <= one < 1 for one in numbers)
    assert 0.48 < sum(numbers) / len(numbers) < 0.52
    assert {Draws(3).below(6, "dice", one) for one in range(200)} == set(range(6))
    assert {Draws(3).choice("xyz", one) for one in range(100)} == {"x", "y", "z"}
