-- session.lua - of a session's requests one at a time is in a queue or runs: the session's holder.
-- Needs names.lua, rq_job.lua.
--
-- The others wait in a list, in the order in which they were routed. Whatever ends the holder lets
-- the next one in (end_request.lua). A holder that vanished is found by reconcile.lua. A key of
-- another type than ours, which somebody put there, goes: the files know of the session, and who
-- waits is found by reconcile.lua.
local WAITS = '; waits for its session, behind '
local LET_IN = {} -- ids that this script has let in
local SOUND = {} -- keys that this script has looked at

local function sound(key, kind)
  if not SOUND[key] then
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
    SOUND[key] = true
  end
  return key
end

local function session_key(session) return sound(P .. ':session:' .. session, 'hash') end
local function session_list(session)
  return sound(P .. ':session:' .. session .. ':waiting', 'list')
end
local function waiting_key() return sound(P .. ':waiting', 'zset') end
local function deadlines_key() return sound(P .. ':deadlines', 'zset') end

-- The full id of a session, of what a job's hash says of it; nil when it belongs to none.
local function full_session(session_id, tenant)
  if not session_id then return nil end
  if not tenant or tenant == 'default' then return session_id end
  return tenant .. '--' .. session_id
end

local function session_of(id)
  return full_session(unpack(redis.call('HMGET', job_key(id), 'session_id', 'tenant')))
end

local function keep_session(session)
  redis.call('EXPIRE', session_key(session), KEEP_S)
  redis.call('EXPIRE', session_list(session), KEEP_S)
  redis.call('EXPIRE', waiting_key(), KEEP_S)
end

-- A number of its hash; 0: it is not there, or is none, and then goes.
local function session_number(session, field)
  local told = redis.call('HGET', session_key(session), field)
  if not told then return 0 end
  if string.match(told, '^%d+$') and #told < 16 then return tonumber(told) end
  redis.call('HDEL', session_key(session), field)
  return 0
end

-- Who holds the session: nil when nobody does, or when it ended or vanished.
local function holder_of(session)
  local holder = redis.call('HGET', session_key(session), 'holder')
  local status = holder and redis.call('HGET', job_key(holder), 'status')
  return status and not TERMINAL[status] and holder or nil
end

local function hold_session(session, id)
  redis.call('HSET', session_key(session), 'holder', id)
  keep_session(session)
end

-- Behind all that wait for the session; `front`: before them.
local function wait_for_session(session, id, front)
  local list = session_list(session)
  local ahead = front and 1 or redis.call('LLEN', list) + 1
  local reason = redis.call('HGET', job_key(id), 'reason') or ''
  redis.call(front and 'LPUSH' or 'RPUSH', list, id)
  redis.call('ZADD', waiting_key(), NOW_MS, id)
  redis.call('HSET', job_key(id), 'reason', reason .. WAITS .. ahead)
  keep_session(session)
end

local function stop_waiting(session, id)
  redis.call('LREM', session_list(session), 0, id)
  redis.call('ZREM', waiting_key(), id)
  local reason = redis.call('HGET', job_key(id), 'reason')
  local mark = reason and string.find(reason, WAITS, 1, true)
  if mark then redis.call('HSET', job_key(id), 'reason', string.sub(reason, 1, mark - 1)) end
end

-- It counts as if it came now: a session with many requests takes no turn from another. By how much
-- later that is stays in the job: another class ranks it anew (promote.lua).
local function rank_from_now(id)
  local known = redis.call('HMGET', job_key(id), 'rank', 'arrival_ms', 'session_wait_ms')
  if not known[1] or not known[2] then return end
  local later, before = math.max(NOW_MS - tonumber(known[2]), 0), tonumber(known[3] or 0)
  redis.call('HSET', job_key(id), 'rank', string.format('%.0f', known[1] + later - before),
    'session_wait_ms', string.format('%.0f', later))
end

-- The first that waits holds the session and goes into its pool's queue; gives its id, or nil.
local function pass_session_on(session)
  local list = session_list(session)
  local id = redis.call('LINDEX', list, 0)
  while id do
    local known = redis.call('HMGET', job_key(id), 'status', 'pool')
    stop_waiting(session, id)
    if known[1] == 'queued' and known[2] then
      hold_session(session, id)
      rank_from_now(id)
      rq_push(id, known[2], 'workers.jobs.generate', id)
      LET_IN[id] = true
      return id
    end
    id = redis.call('LINDEX', list, 0)
  end
  redis.call('HDEL', session_key(session), 'holder')
  keep_session(session)
  return nil
end

-- A request of a session ended: as its holder, or while it waited.
local function leave_session(id)
  local session = session_of(id)
  if not session then return end
  if redis.call('HGET', session_key(session), 'holder') == id then
    pass_session_on(session)
  else
    stop_waiting(session, id)
  end
end
