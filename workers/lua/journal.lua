-- journal.lua - the tokens of one step, fenced by the leases.
--
-- A repeat changes nothing: Redis refuses an entry id that it has seen.
--
-- ARGV[5] queue name
-- ARGV[6] ... of each request: id, execution, n, and n times: entry id, width, that many arguments
-- returns the ids whose lease is lost; nothing was written for them
-- include names
-- include rq_job
-- include session
-- include end_request
-- include lease
local queue, lost, i = ARGV[5], {}, 6

local function append(id, entry, first, width)
  local reply = redis.pcall('XADD', tokens_key(id), entry, unpack(ARGV, first, first + width - 1))
  local refused = type(reply) == 'table' and reply.err
  if refused and not string.find(refused, 'equal or smaller', 1, true) then error(refused) end
  if entry == '0-1' then redis.call('EXPIRE', tokens_key(id), KEEP_S) end
end

while i <= #ARGV do
  local id, execution, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local held = has_lease(queue, id, execution)
  i = i + 3
  for _ = 1, n do
    local width = tonumber(ARGV[i + 1])
    if held then append(id, ARGV[i], i + 2, width) end
    i = i + 2 + width
  end
  -- it moves: what its workers died of before was something else
  if held and redis.call('HGET', job_key(id), 'attempts') ~= '0' then
    redis.call('HSET', job_key(id), 'attempts', 0)
  end
  if not held then lost[#lost + 1] = id end
end
return lost
