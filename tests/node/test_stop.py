"""The end of a node: Ctrl-C stops all of it, also in mid-generation, and nothing is lost."""

from tests.node.running_node import wait_for


def test_ctrl_c_in_mid_generation_leaves_no_process_and_the_next_start_goes_on(make_node):
    node = make_node()
    words = ["prompt", "A long story:", "max_tokens", "80", "temperature", "0"]
    alone = node.end(node.add(*words))["text"]
    request_id = node.add(*words)
    wait_for(lambda: node.num_tokens(request_id) > 5, "tokens")
    seconds = node.interrupt()
    print(f"stopped within {seconds:.1f} s")
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")
    node.start()
    assert node.end(request_id)["text"] == alone
    node.interrupt()
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")


def test_a_killed_honcho_leaves_no_orphans(make_node):
    node = make_node()
    assert len(node.processes()) > 12  # honcho, its helpers, keepers and programs
    node.honcho.kill()
    node.honcho.wait()
    assert wait_for(lambda: not node.left_over(), f"gone: {node.left_over()}")
