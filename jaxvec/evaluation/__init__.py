"""What vectors are worth: metrics, tasks and their readers, fitting settings, isotropy and figures."""
