-- hand_back.lua - a worker that stops puts its items to the front of the queue, no attempt burnt.
--
-- ARGV[5] queue name   ARGV[6] max_attempts   ARGV[7] ... id, execution of each
-- returns the ids that were put back
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local items = {}
for i = 7, #ARGV, 2 do items[#items + 1] = { ARGV[i], ARGV[i + 1] } end
return put_back_all(ARGV[5], items, tonumber(ARGV[6]), true)
