local stored = redis.call('HMGET', key, 'epoch', 'deleted')
if not stored[1] or stored[2] then return {'NOT_FOUND'} end
return answer('OK', now_ms())
