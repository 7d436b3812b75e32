-- give_up.lua - a request that waits in a queue, and that nobody can run any more, ends.
--
-- KEYS[1] hash of the job
-- ARGV[5] request id   ARGV[6] the pool in whose queue it waits   ARGV[7] ... the end event
-- returns 1; 0: it does not wait there any more, and nothing is done
-- include names
-- include rq_job
-- include session
-- include end_request
if redis.call('HGET', KEYS[1], 'status') ~= 'queued' then return 0 end
if redis.call('LREM', queue_key(ARGV[6]), 0, ARGV[5]) == 0 then return 0 end
end_request(ARGV[5], arguments(7), nil)
return 1
