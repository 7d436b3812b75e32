-- finish_task.lua - one webhook attempt is done, for RQ; fenced. What follows from it is the caller's.
--
-- ARGV[5] queue name   ARGV[6] job id   ARGV[7] execution   ARGV[8] RQ's status: "finished" or "failed"
-- returns 1, or 0 when the lease was lost
-- include names
-- include rq_job
-- include end_request
-- include lease
if not drop_lease(ARGV[5], ARGV[6], ARGV[7]) then
  local known = redis.call('HMGET', rq_key(ARGV[6]), 'status', 'execution')
  return (known[1] == ARGV[8] and known[2] == ARGV[7]) and 1 or 0
end
rq_end(ARGV[6], ARGV[8])
return 1
