"""All faults, by name, with their rows of the fault matrix (README.md)."""

import random

from tests.chaos.faults import clock, disk, links, messages, points, programs, receiver, store
from tests.chaos.storm import Fault

MENU = {
    fault.name: fault
    for fault in (
        Fault("kill_router", programs.kill_router, (1,)),
        Fault("kill_at_route", points.kill_at_route, (2,)),
        Fault("second_router", programs.second_router, (3,)),
        Fault("doubles", messages.doubles, (4,)),
        Fault("lost_replies", links.lost_replies, (5,), linked=True),
        Fault("poison", points.poison, (6,), weight=0.3),
        Fault("garbage", messages.garbage, (7,)),
        Fault("kill_cpu", programs.kill_cpu, (8,)),
        Fault("kill_gpu", programs.kill_gpu, (8,)),
        Fault("kill_both_pools", programs.kill_both_pools, (8,)),
        Fault("kill_again_and_again", programs.kill_again_and_again, (8, 13)),
        Fault("kill_at_claim", points.kill_at_claim, (9,)),
        Fault("kill_at_tell", points.kill_at_tell, (10,), weight=2),
        Fault("kill_at_point", points.kill_at_point, (10,), weight=2),
        Fault("kill_at_accept", points.kill_at_accept, (10,)),
        Fault("kill_at_webhook_end", points.kill_at_webhook_end, (10,)),
        Fault("kill_at_hand_over", points.kill_at_hand_over, (10,)),
        Fault("freeze_pool", programs.freeze_pool, (11, 12)),
        Fault("freeze_both_pools", programs.freeze_both_pools, (11, 12)),
        Fault("freeze_router", programs.freeze_router, (12,)),
        Fault("freeze_api", programs.freeze_api, (12,)),
        Fault("freeze_webhooks", programs.freeze_webhooks, (12,)),
        Fault("freeze_everything", programs.freeze_everything, (12,), weight=0.5),
        Fault("mass_cancel", messages.mass_cancel, (15,)),
        Fault("kill_store", programs.kill_store, (17,)),
        Fault("terminate_store", programs.terminate_store, (17,)),
        Fault("rewritten_log", store.rewritten_log, (17,), weight=0.5),
        Fault("torn_log", store.torn_log, (18,)),
        Fault("cut_log", store.cut_log, (18,)),
        Fault("power_cut", store.power_cut, (18,)),
        Fault("full_disk_of_store", disk.full_disk_of_store, (19,)),
        Fault("full_memory", store.full_memory, (20,)),
        Fault("cut_links", links.cut, (21,), linked=True),
        Fault("stalled_links", links.stall, (21,), linked=True),
        Fault("slow_links", links.slow, (21,), linked=True),
        Fault("torn_requests", links.torn_requests, (21,), linked=True),
        Fault("store_out_of_reach", links.down, (21,), linked=True),
        Fault("cut_clients", store.cut_clients, (21,)),
        Fault("freeze_store", programs.freeze_store, (21, 22)),
        Fault("busy_store", store.busy_store, (22,)),
        Fault("flushed_scripts", store.flushed_scripts, (17,), weight=0.5),
        Fault("clock_forward", clock.forward, (23,)),
        Fault("clock_backward", clock.backward, (23,)),
        Fault("clock_there_and_back", clock.there_and_back, (23,)),
        Fault("clock_drifts", clock.drifting, (23,)),
        Fault("receiver_slow", receiver.moody("slow"), (24,)),
        Fault("receiver_drips", receiver.moody("drips"), (25,), weight=0.5),
        Fault("receiver_redirects", receiver.moody("redirects"), (25,), weight=0.5),
        Fault("receiver_refuses", receiver.moody("refuses"), (27,), weight=0.5),
        Fault("receiver_limits", receiver.moody("limits"), (27,), weight=0.5),
        Fault("receiver_closes", receiver.moody("closes"), (27,), weight=0.5),
        Fault("receiver_lies", receiver.moody("lies"), (27,)),
        Fault("receiver_down", receiver.down, (27,)),
        Fault("receiver_cut_off", receiver.cut_off, (27,)),
        Fault("receiver_answers_lost", receiver.lost_answers, (27,)),
        Fault("flipped_bits", disk.flipped_bits, (28,)),
        Fault("cut_files", disk.cut_files, (28, 31)),
        Fault("lost_files", disk.lost_files, (28, 31)),
        Fault("lost_ledger", disk.lost_ledger, (28,)),
        Fault("full_disk", disk.full_disk, (30,)),
        Fault("restless", messages.restless, (32,)),
        Fault("too_large", messages.too_large, (33,)),
        Fault("memory_killer", programs.memory_killer, (34,)),
        Fault("kill_api", programs.kill_api, (37,)),
        Fault("kill_webhooks", programs.kill_webhooks, (37,)),
        Fault("kill_all_programs", programs.kill_all_programs, (37,)),
        Fault("kill_keeper", programs.kill_keeper, (37,)),
        Fault("kill_honcho", programs.kill_honcho, (37,)),
        Fault("terminate_program", programs.terminate_program, (38,)),
        Fault("stop_and_start", programs.stop_and_start, (38,)),
        Fault("other_version", messages.other_version, (39,), weight=0.5),
        Fault("emptied_queue", store.emptied_queue, (40,), weight=0.5),
        Fault("suspended_workers", store.suspended_workers, (40,), weight=0.5),
        Fault("no_descriptor", programs.no_descriptor, (41,)),
    )
}
# the log that is rewritten names old requests in another file: then nobody could say who was cut
APART = ({"rewritten_log"}, {"power_cut", "cut_log"})


def drawn(seed: int, number: int) -> list[Fault]:
    """The faults of a seed, in their order."""
    chance, names = random.Random(f"{seed} menu"), list(MENU)
    weights = [MENU[name].weight for name in names]
    found: list[str] = []
    while len(found) < number:
        name = chance.choices(names, weights)[0]
        mine = [side for side in APART if name in side]
        others = [side for side in APART if name not in side] if mine else []
        if not any(other in side for side in others for other in found):
            found.append(name)
    return [MENU[name] for name in found]
